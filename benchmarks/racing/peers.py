"""Rivals that a user could run instead: other projects' kernels on the op's own arguments.

Here are those that no implementation of the registry calls, and of adapted libraries the kernels alone, without what
the op needs beside them: inverse norms that are known, lengths that are planned for, halves that are tensors of their
own. Each is installed by hand (`pip install liger-kernel flag-gems gemlite humming-kernels quack-kernels
flashinfer-python`); one that is missing is reported as missing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from registry import PackedWeight, Problem
from registry.packed import LAYOUT

from . import attention, liger, mla_decode, packed, quack, sampling
from .device_timing import Call, Maker
from .gemlite import gemlite_layer


def calls(problem: Problem, values: tuple[Any, ...]) -> Iterator[tuple[str, Call | str]]:
    """(name, callable on the op's values) of every peer of the op; a text where it is not usable, with the reason."""
    for name, maker in _PEERS.get(problem.op, {}).items():
        try:
            yield name, maker(problem, values)
        except Exception as fault:  # a peer that does not import or refuses the shape is a row of the table
            yield name, f"{type(fault).__name__}: {fault}".splitlines()[0][:160]


def _max_autotune(function: Callable[..., Any]) -> Call:
    torch._dynamo.reset()
    compiled: Call = torch.compile(function, fullgraph=True, dynamic=False, mode="max-autotune-no-cudagraphs")
    return compiled


def _compiled_softmax(*_: object) -> Call:
    compiled = _max_autotune(lambda x: torch.softmax(x, -1))
    return lambda x, _dim: compiled(x)


def _compiled_norm(_: Problem, values: tuple[Any, ...]) -> Call:
    eps = values[2]
    compiled = _max_autotune(lambda x, weight: torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps))
    return lambda x, weight, _eps: compiled(x, weight)


def _torchs_cross_entropy(*_: object) -> Call:
    cross_entropy = torch.nn.functional.cross_entropy
    return lambda logits, target, weight, index, reduction, smoothing: cross_entropy(
        logits, target, weight, ignore_index=index, reduction=reduction, label_smoothing=smoothing
    )


def _compiled_cross_entropy(_: Problem, values: tuple[Any, ...]) -> Call:
    own = _torchs_cross_entropy()
    compiled = _max_autotune(lambda logits, target, weight: own(logits, target, weight, *values[3:]))
    return lambda logits, target, weight, *_: compiled(logits, target, weight)


def _torchs_linear_loss(*_: object) -> Call:
    """torch's linear layer and cross-entropy. Liger's waits for the GPU: benchmarks.racing.fused_linear_loss."""
    linear, cross_entropy = torch.nn.functional.linear, torch.nn.functional.cross_entropy
    return lambda x, weight, target, bias, index, reduction, smoothing: cross_entropy(
        linear(x, weight, bias), target, ignore_index=index, reduction=reduction, label_smoothing=smoothing
    )


def _gems_softmax(*_: object) -> Call:
    softmax: Call = importlib.import_module("flag_gems").ops.softmax
    return softmax


def _gems_norm(*_: object) -> Call:
    rms_norm = importlib.import_module("flag_gems").ops.rms_norm
    return lambda x, weight, eps: rms_norm(x, (x.shape[-1],), weight, eps)


def _gemlite(problem: Problem, values: tuple[Any, ...]) -> Call:
    """GemLite's layer over the same quantised weight; its own autotuning happens at the first call."""
    _, qweight, scales, zeros, bits, group_size, k, _ = values
    layer = gemlite_layer(PackedWeight(qweight, scales, zeros, bits, group_size, (problem.n, k), LAYOUT))
    return lambda a, *_: layer.forward(a)


_PEERS: Mapping[str, Mapping[str, Maker]] = {
    "softmax": {
        "torch.compile max-autotune": _compiled_softmax,
        "FlagGems": _gems_softmax,
    },
    "rms_norm": {
        "torch.compile max-autotune": _compiled_norm,
        "FlagGems": _gems_norm,
    },
    "rms_norm_backward": {"QuACK": quack.rms_norm_backward},
    "cross_entropy": {
        "torch's own": _torchs_cross_entropy,
        "torch.compile max-autotune": _compiled_cross_entropy,
        "Liger": liger.cross_entropy,
        "QuACK": quack.cross_entropy,
    },
    "cross_entropy_backward": {"QuACK": quack.cross_entropy_backward},
    "fused_linear_cross_entropy": {"torch's own": _torchs_linear_loss},
    "rotary_embedding": {"Liger": liger.rotary_embedding},
    "layer_norm": {"Liger": liger.layer_norm},
    "fused_add_rms_norm": {"Liger": liger.fused_add_rms_norm},
    "gelu_and_mul": {"Liger": liger.gelu_and_mul},
    "attention_decode": {
        "SDPA flash": attention.sdpa_decode("FLASH_ATTENTION"),
        "SDPA cuDNN": attention.sdpa_decode("CUDNN_ATTENTION"),
        "FlashInfer": attention.flashinfer_decode,
    },
    "mla_decode": {"FlashInfer": mla_decode.flashinfer},
    "top_k_top_p_sampling": {"FlashInfer": sampling.flashinfer, "exponential race": sampling.exponential_race},
    "attention": {
        "SDPA flash": attention.sdpa("FLASH_ATTENTION"),
        "SDPA cuDNN": attention.sdpa("CUDNN_ATTENTION"),
        "SDPA efficient": attention.sdpa("EFFICIENT_ATTENTION"),
    },
    "gemm_int4": {"dense": packed.dense, "GemLite": _gemlite, "Humming": packed.humming},
    **{
        op: {"dense": packed.dense, "Humming": packed.humming}
        for op in ("gemm_int8", "gemm_int2", "gemm_int1", "gemm_w4a16", "gemm_w4a8", "gemm_w8a8")
    },
    "gemm_sparse24": {"dense": packed.dense_of_sparse},
}
