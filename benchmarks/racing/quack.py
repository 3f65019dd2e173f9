"""QuACK's kernels, each called on the values of the registry's op. They are compiled at their first call."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from registry import Problem

from .device_timing import Call


def rms_norm_backward(_: Problem, values: tuple[Any, ...]) -> Call:
    """``rmsnorm_bwd``, whose reciprocal norms are computed before anything is timed: its forward pass stores them."""
    backward = importlib.import_module("quack.rmsnorm").rmsnorm_bwd
    x, eps = values[1], values[3]
    rstd = torch.rsqrt(x.float().square().mean(-1) + eps)
    return lambda grad, x, weight, *_: backward(x, weight, grad, rstd)[:2]


def cross_entropy(problem: Problem, values: tuple[Any, ...]) -> Call:
    """``cross_entropy_fwd`` with its log-sum-exp; a mean is one more reduction, as in QuACK's own function."""
    forward = importlib.import_module("quack.cross_entropy").cross_entropy_fwd
    _plain(values)
    reductions: dict[str, Call] = {"none": torch.Tensor.detach, "sum": torch.sum, "mean": torch.mean}
    finish = reductions[problem.reduction]

    def call(logits: torch.Tensor, target: torch.Tensor, _weight: None, index: int, *_: object) -> tuple[Any, ...]:
        losses, lse = forward(logits, target, ignore_index=index, return_lse=True)
        return finish(losses), lse

    return call


def cross_entropy_backward(problem: Problem, values: tuple[Any, ...]) -> Call:
    """``cross_entropy_bwd``; what multiplies a row's gradient is computed before anything is timed."""
    backward = importlib.import_module("quack.cross_entropy").cross_entropy_bwd
    grad_loss, logits, target, weight, _, index, *rest = values
    _plain((logits, target, weight, index, *rest))
    kept = (target != index).sum() if problem.reduction == "mean" else 1
    each = (grad_loss.float() / kept).expand(target.shape).contiguous()
    return lambda _grad, logits, target, _weight, lse, *_: backward(logits, target, each, lse, ignore_index=index)


def _plain(values: tuple[Any, ...]) -> None:
    """Raise ValueError for class weights and label smoothing, which are not raced."""
    if values[2] is not None or values[-1]:
        raise ValueError("class weights and label smoothing are not raced")
