"""Layouts of the tensors of a gradient that torch's private operators read rightly."""

from __future__ import annotations

import torch

from .aten import GradientCall


def with_rows_of_lse(call: GradientCall) -> GradientCall:
    """The call with a log-sum-exp that is row-major: torch's kernels read no strides of it."""
    return call if call.lse.is_contiguous() else call._replace(lse=call.lse.contiguous())


def with_heads_in_one_order(call: GradientCall) -> GradientCall:
    """The call with tensors of heads whose batches, tokens and heads lie in one order, with gaps or without.

    xformers' kernels in torch 2.11 gave wrong gradients where each tensor had an order of its own.
    """
    heads = {name: getattr(call, name) for name in ("grad_out", "q", "k", "v", "out")}
    if len({_order(each) for each in heads.values()}) == 1:
        return call
    return call._replace(**{name: each.contiguous() for name, each in heads.items()})


def _order(tensor: torch.Tensor) -> tuple[int, ...]:
    """The dimensions, from the one with the largest stride."""
    strides = tensor.stride()
    return tuple(sorted(range(len(strides)), key=lambda dimension: -strides[dimension]))
