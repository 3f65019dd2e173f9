"""Layouts of the tensors of a gradient that torch's private operators read rightly."""

from __future__ import annotations

from typing import Any

import torch

from .aten import GradientCall

_HEADS = ("grad_out", "q", "k", "v", "out")


def with_rows_of_lse(call: GradientCall) -> GradientCall:
    """The call with a log-sum-exp that is row-major: torch's kernels read no strides of it."""
    return call if call.lse.is_contiguous() else call._replace(lse=call.lse.contiguous())


def with_heads_in_one_order(call: GradientCall) -> GradientCall:
    """The call with tensors of heads whose batches, tokens and heads lie in one order, with gaps or without.

    xformers' kernels in torch 2.11 gave wrong gradients where each tensor had an order of its own.
    """
    heads = {name: getattr(call, name) for name in _HEADS}
    if len({_order(each) for each in heads.values()}) == 1:
        return call
    return call._replace(**{name: each.contiguous() for name, each in heads.items()})


def with_dense_lone_strides(call: GradientCall) -> GradientCall:
    """The call with heads in which a dimension of one element has the stride of a row-major tensor.

    Such a stride leads nowhere, and may be any; xformers' kernels want a multiple of 16 bytes all the same.
    """
    heads: dict[str, Any] = {name: _restrided(getattr(call, name)) for name in _HEADS}
    return call._replace(**heads)


def _restrided(tensor: torch.Tensor) -> torch.Tensor:
    if 1 not in tensor.shape:
        return tensor
    strides, dense = list(tensor.stride()), 1
    for dimension in reversed(range(tensor.dim())):
        if tensor.shape[dimension] == 1:
            strides[dimension] = dense
        dense *= tensor.shape[dimension]
    return tensor.as_strided(tensor.shape, strides)


def _order(tensor: torch.Tensor) -> tuple[int, ...]:
    """The dimensions, from the one with the largest stride."""
    strides = tensor.stride()
    return tuple(sorted(range(len(strides)), key=lambda dimension: -strides[dimension]))
