"""A pytest plugin by which Liger's own tests run the registry's ops in place of Liger's kernels.

It is loaded by ``-p benchmarks.conformance.liger_shim`` in a checkout of Liger. ``apply`` of each autograd function
that the registry has an op for becomes a call of it; Liger's modules, functions and tests are its own.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from .counted_calls import ours

FILES = (
    "cross_entropy", "embedding", "fused_add_rms_norm", "fused_linear_cross_entropy", "geglu", "layer_norm", "rms_norm",
    "rope", "softmax", "swiglu",
)  # fmt: skip
"""The files of test/transformers whose functions are replaced, without ``test_``."""


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Replace the functions before the tests are imported, and let bfloat16 run on a CPU, too."""
    source = Path(os.environ["CONFORMANCE_LIGER"])
    sys.path[:0] = [str(source / "src"), str(source)]
    sys.modules.pop("test", None)  # Python's own package of that name
    ops = importlib.import_module("liger_kernel.ops")
    for name, function in FUNCTIONS.items():
        getattr(ops, name).apply = staticmethod(function)
    vars(importlib.import_module("test.utils"))["supports_bfloat16"] = lambda: True


def _rms_norm(x: Any, weight: Any, eps: float, offset: float = 0.0, *_: Any) -> Any:
    # Liger's module passes the offset of its weight also where it has none
    return ours("rms_norm", x, weight, eps, offset=0.0 if weight is None else offset)


def _fused_add_rms_norm(x: Any, residual: Any, weight: Any, eps: float, offset: float = 0.0, *_: Any) -> Any:
    """The sum and its norm, by the ops that the documentation of fused_add_rms_norm names for training."""
    total = ours("vector_add", x, residual)
    return ours("rms_norm", total, weight, eps, offset=offset), total


def _layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    return ours("layer_norm", x, weight, bias, eps)


def _softmax(x: Any) -> Any:
    return ours("softmax", x)


def _geglu(gate: torch.Tensor, up: torch.Tensor) -> Any:
    return ours("gelu_and_mul", torch.cat((gate, up), -1), "tanh")


def _swiglu(gate: torch.Tensor, up: torch.Tensor, of_gate: float = 1.0, down: float = 1.0) -> Any:
    y = ours("silu_and_mul", torch.cat((gate if of_gate == 1.0 else gate * of_gate, up), -1))
    return y if down == 1.0 else y * down


def _fused_swiglu(x: torch.Tensor, *_: Any) -> Any:
    return ours("silu_and_mul", x)


def _embedding(weight: torch.Tensor, indices: torch.Tensor) -> Any:
    return ours("embedding", indices, weight)


class _Rotation(torch.autograd.Function):
    """rotary_embedding of copies [batch, heads, seq, head_dim]; the gradient is rotated by the opposite angles."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        ctx.save_for_backward(cos, sin)
        return _rotated(q, k, cos, sin)

    @staticmethod
    def backward(ctx: Any, q: Any, k: Any) -> Any:
        cos, sin = ctx.saved_tensors
        return *_rotated(q, k, cos, -sin), None, None


def _rotated(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
    half, (batch, _, length, size) = cos.shape[-1] // 2, q.shape
    table = torch.cat((cos[..., :half], sin[..., :half]), -1)
    positions = torch.arange(length, device=q.device).repeat(batch, 1)
    if table.shape[0] > 1:
        positions = positions + length * torch.arange(batch, device=q.device)[:, None]
    turned = [one.transpose(1, 2).clone(memory_format=torch.contiguous_format) for one in (q, k)]
    ours("rotary_embedding", positions, *turned, size, table.flatten(0, 1).float(), True)
    return tuple(one.transpose(1, 2) for one in turned)


def _rope(q: Any, k: Any, cos: Any, sin: Any, *_: Any) -> Any:
    return _Rotation.apply(q, k, cos, sin)


_OF_LOSS = (
    "ignore_index", "lse_square_scale", "label_smoothing", "reduction", "softcap", "return_z_loss",
)  # fmt: skip
_TOLD = ("return_token_accuracy", "return_predicted_tokens")
_OWN = frozenset({"lse_square_scale", "softcap", "use_token_scaling", "return_z_loss", "ce_weight", *_TOLD})
"""Liger's own options. The registry refuses them by name, where they are not off."""


def _options(names: tuple[str, ...], values: tuple[Any, ...]) -> dict[str, Any]:
    given = dict(zip(names, values, strict=False))
    given.pop("accum_dtype", None)  # gradients are summed in fp32 anyway
    off = {name for name in _OWN if not isinstance(given.get(name), torch.Tensor) and not given.get(name)}
    return {name: value for name, value in given.items() if value is not None and name not in off}


def _cross_entropy(logits: Any, target: Any, *values: Any) -> Any:
    options = _options(("weight", *_OF_LOSS, *_TOLD), values)
    return ours("cross_entropy", logits, target, **options)[0], None, None, None


def _fused_linear_cross_entropy(x: Any, weight: Any, target: Any, *values: Any) -> Any:
    names = ("bias", "ce_weight", *_OF_LOSS, "accum_dtype", "use_token_scaling", *_TOLD)
    return ours("fused_linear_cross_entropy", x, weight, target, **_options(names, values))[0], None, None, None


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "LigerCrossEntropyFunction": _cross_entropy,
    "LigerEmbeddingFunction": _embedding,
    "LigerFusedAddRMSNormFunction": _fused_add_rms_norm,
    "LigerFusedGateUpSiLUMulFunction": _fused_swiglu,
    "LigerFusedLinearCrossEntropyFunction": _fused_linear_cross_entropy,
    "LigerGELUMulFunction": _geglu,
    "LigerLayerNormFunction": _layer_norm,
    "LigerRMSNormFunction": _rms_norm,
    "LigerRopeFunction": _rope,
    "LigerSiLUMulFunction": _swiglu,
    "LigerSoftmaxFunction": _softmax,
}
"""Name of Liger's autograd function -> what its ``apply`` becomes."""
