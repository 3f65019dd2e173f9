"""Liger's kernels, each called on the values of the registry's op."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from registry import Problem

from .device_timing import Call


def layer_norm(_: Problem, values: tuple[Any, ...]) -> Call:
    """Liger's layer norm, which needs weight and bias: it gets ones and zeros where the op has none."""
    apply: Call = importlib.import_module("liger_kernel.ops.layer_norm").LigerLayerNormFunction.apply
    x = values[0]
    ones, zeros = (make(x.shape[-1], dtype=x.dtype, device=x.device) for make in (torch.ones, torch.zeros))
    return lambda x, weight, bias, eps: apply(
        x, ones if weight is None else weight, zeros if bias is None else bias, eps
    )


def fused_add_rms_norm(*_: object) -> Call:
    """Liger's fused add and norm: it writes sum and norm to new tensors, the op in place: as many bytes."""
    module = importlib.import_module("liger_kernel.ops.fused_add_rms_norm")
    forward = module.fused_add_rms_norm_forward
    return lambda x, residual, weight, eps, *_: forward(x, residual, weight, eps, 0.0, "llama")[:2]


def gelu_and_mul(problem: Problem, _: tuple[Any, ...]) -> Call:
    """Liger's GeGLU (tanh only), which takes the halves as two tensors: they are made before anything is timed."""
    if problem.dims["approximate"] != "tanh":
        raise ValueError("Liger's gelu is the approximation by tanh alone")
    forward = importlib.import_module("liger_kernel.ops.geglu").geglu_forward
    halves: dict[int, tuple[torch.Tensor, ...]] = {}

    def call(x: torch.Tensor, *_: object) -> Any:
        if x.data_ptr() not in halves:
            halves[x.data_ptr()] = tuple(half.contiguous() for half in x.chunk(2, -1))
        return forward(*halves[x.data_ptr()])[-1]

    return call


def cross_entropy(problem: Problem, values: tuple[Any, ...]) -> Call:
    """Liger's kernel without the checks around it, which wait for the GPU; it computes the loss, no gradient."""
    module = importlib.import_module("liger_kernel.ops.cross_entropy")
    _, target, weight, ignore_index, reduction, smoothing = values
    if weight is not None:
        raise ValueError("class weights are not raced")
    kept = int((target != ignore_index).sum())
    block = min(module.MAX_FUSED_SIZE, module.triton.next_power_of_2(problem.cols))

    def call(logits: torch.Tensor, target: torch.Tensor, *_: object) -> torch.Tensor:
        losses = torch.zeros(logits.shape[0], dtype=logits.dtype, device=logits.device)
        module.liger_cross_entropy_kernel[(logits.shape[0],)](
            X_ptr=logits, X_stride=logits.stride(0), Y_ptr=target, Y_stride=1, weight_ptr=None, loss_ptr=losses,
            z_loss_ptr=None, loss_stride=1, token_accuracy_ptr=None, token_accuracy_stride=0, predicted_tokens_ptr=None,
            predicted_tokens_stride=0, n_cols=problem.cols, n_non_ignore=kept, sum_non_ignore_weight=kept,
            ignore_index=ignore_index, weight_sum=0.0, lse_square_scale=0.0, label_smoothing=smoothing,
            reduction=reduction, softcap=None, RETURN_Z_LOSS=False, RETURN_TOKEN_ACCURACY=False,
            RETURN_PREDICTED_TOKENS=False, BLOCK_SIZE=block, HAS_WEIGHT=False, HAS_SOFTCAPPING=False,
            HAS_GRADIENTS=False, num_warps=32,
        )  # fmt: skip
        return losses if reduction == "none" else losses.sum()

    return call


def rotary_embedding(problem: Problem, values: tuple[Any, ...]) -> Call:
    """Liger's rotation in place, whose angles are looked up before anything is timed: it knows no positions."""
    if problem.style != "neox":
        raise ValueError("Liger rotates halves of heads alone")
    forward = importlib.import_module("liger_kernel.ops.rope").rope_forward
    positions, _, _, head_dim, table, _ = values
    cos, sin = (each.repeat(1, 2).unsqueeze(0) for each in table[positions].chunk(2, -1))

    def heads(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view(1, problem.tokens, -1, head_dim).transpose(1, 2)

    return lambda _positions, query, key, *_: forward(heads(query), heads(key), cos, sin)[:2]
