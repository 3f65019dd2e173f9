"""Layouts of the tensors of a gradient that torch's private operators read rightly."""

from __future__ import annotations

from .aten import GradientCall


def with_rows_of_lse(call: GradientCall) -> GradientCall:
    """The call with a log-sum-exp that is row-major: torch's kernels read no strides of it."""
    return call if call.lse.is_contiguous() else call._replace(lse=call.lse.contiguous())


def with_equal_strides(call: GradientCall) -> GradientCall:
    """The call with outputs and their gradients in one layout: cuDNN 9 reads the former by the strides of the latter.

    Gradients of queries and keys are wrong otherwise, by half their length for a transposed gradient.
    """
    if call.grad_out.stride() == call.out.stride():
        return call
    return call._replace(grad_out=call.grad_out.contiguous(), out=call.out.contiguous())


def with_row_major_heads(call: GradientCall) -> GradientCall:
    """The call with all tensors of heads row-major: xformers' kernels misread some that lie in other orders."""
    heads = {name: getattr(call, name).contiguous() for name in ("grad_out", "q", "k", "v", "out")}
    return call._replace(**heads)
