"""Liger's functions of rows as implementations, the reasons why one cannot run, and softmax, the simplest of them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

import registry
from registry import Device, Implementation, Problem

LIBRARY = "liger-kernel"
DTYPES = ("bfloat16", "float16", "float32")
DEVICE_TYPES = ("cpu", "cuda") if os.environ.get("TRITON_INTERPRET") == "1" else ("cuda",)
"""Triton's interpreter runs the library's kernels on CPU tensors."""

_MOST_COLUMNS = 65536
"""A row is one block of a Triton kernel, and the library makes no larger one."""

LigerReasons = Callable[[Problem, Device], Iterator[str]]


def liger(op: str, function: Callable[..., Any], unsupported: LigerReasons, *, into: bool = False) -> Implementation:
    """``function`` as the implementation ``liger.<op>``; it serves any size of the dynamic dimensions."""
    return registry.implementation_of(
        op,
        f"liger.{op}",
        function,
        library=LIBRARY,
        any_size=True,
        into=into,
        unsupported=unsupported,
        device_types=DEVICE_TYPES,
        preference=-10.0,  # not before it was measured
        preloads=[f"{__package__}.preloading:import_kernels"],
    )


def layout_reasons(problem: Problem, _device: Device) -> Iterator[str]:
    """Why Liger cannot take a problem's dtype or the layout of its tensors."""
    if problem.dtype not in DTYPES:
        yield f"dtype is {problem.dtype}, expected {', '.join(DTYPES)}"
    if not problem.traits["contiguous"]:
        yield "tensors are not contiguous"


def row_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Reasons of ``layout_reasons``, and rows of more elements than Liger's kernels have in a block."""
    yield from layout_reasons(problem, device)
    if problem.cols > _MOST_COLUMNS:
        yield f"a row of {problem.cols} elements is no block of its kernels (limit {_MOST_COLUMNS})"


@cache
def library(module: str) -> Any:
    """A module of ``liger_kernel.ops``."""
    return importlib.import_module(f"liger_kernel.ops.{module}")


def softmax(x: torch.Tensor, _dim: int) -> torch.Tensor:
    """softmax of the last dimension."""
    found: torch.Tensor = library("softmax").LigerSoftmaxFunction.apply(x)
    return found


SOFTMAX = liger("softmax", softmax, layout_reasons)
