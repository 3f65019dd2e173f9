"""QuACK's functions of rows as implementations. It compiles a kernel for each number of columns, at its first call."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

import registry
from registry import Device, Implementation, Problem

_LIBRARY = "quack-kernels"
_DTYPES = ("bfloat16", "float16", "float32")
_VECTOR_BYTES = 16


def rows_of(op: str, function: Callable[..., torch.Tensor]) -> Implementation:
    """``function`` as the implementation ``quack.<op>``; it serves any number of rows."""
    return registry.implementation_of(
        op,
        f"quack.{op}",
        function,
        library=_LIBRARY,
        any_size=True,
        unsupported=reasons,
        device_types=("cuda",),
        preference=-10.0,  # not before it was measured: its first call takes seconds
    )


def reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why QuACK cannot run a problem on a device."""
    if device.type == "cuda" and device.capability < (9, 0):
        yield f"its kernels need compute capability 9.0, this GPU has {'.'.join(map(str, device.capability))}"
    if problem.dtype not in _DTYPES:
        yield f"dtype is {problem.dtype}, expected {', '.join(_DTYPES)}"
    elif problem.cols * problem.torch_dtype.itemsize % _VECTOR_BYTES:
        yield f"a row of {problem.cols} elements is no multiple of {_VECTOR_BYTES} bytes"
    if not problem.traits["contiguous"] or not problem.traits["aligned"]:
        yield f"tensors are not contiguous, or do not begin at a multiple of {_VECTOR_BYTES} bytes"


def softmax(x: torch.Tensor, _dim: int) -> torch.Tensor:
    """softmax of the last dimension."""
    found: torch.Tensor = _library("softmax").softmax_fwd(_rows(x))
    return found.view_as(x)


def softmax_backward(grad_y: torch.Tensor, y: torch.Tensor, _dim: int) -> torch.Tensor:
    """The gradient of softmax of the last dimension."""
    found: torch.Tensor = _library("softmax").softmax_bwd(_rows(grad_y), _rows(y))
    return found.view_as(y)


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """``x * rsqrt(mean(x**2) + eps) * weight`` over the last dimension."""
    found: torch.Tensor = _library("rmsnorm").rmsnorm_fwd(_rows(x), weight, eps=eps)[0]
    return found.view_as(x)


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1, x.shape[-1])


@cache
def _library(module: str) -> Any:
    return importlib.import_module(f"quack.{module}")
