"""Numerical proof that two functions of a tensor are one, before a module is replaced."""

from __future__ import annotations

from collections.abc import Callable

import torch

_ALLOWED = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
"""The largest error by dtype, relative to the largest result: some roundings, as sums in another order differ."""

_ROWS = 5

SPREAD = "its weights are spread over devices (DTensor): apply first, then shard"

Function = Callable[[torch.Tensor], torch.Tensor]


def is_spread(tensor: torch.Tensor) -> bool:
    """True for a DTensor, which FSDP2 and tensor-parallel plans put in a parameter's place."""
    # by its name: its module takes long to import, and has been where there is one
    return type(tensor.data).__name__ == "DTensor"


def disagreement(own: Function, other: Function, cols: int, like: torch.Tensor) -> str:
    """How ``other`` differs from a module's ``own`` function of ``[rows, cols]``; "" if it does not.

    ``like`` has the dtype and the device of the module's activations.
    """
    refused = _unfit(like)
    if refused:
        return refused
    generator = torch.Generator(like.device).manual_seed(0)
    x = torch.randn(2, _ROWS, cols, dtype=torch.float32, device=like.device, generator=generator).to(like.dtype)
    try:
        with torch.no_grad():
            expected, found = own(x.clone()), other(x.clone())
    except Exception as fault:  # a model's code may raise anything for an input that it does not take
        return f"{type(fault).__name__}: {fault}"
    if not isinstance(expected, torch.Tensor) or expected.shape != found.shape or expected.dtype != found.dtype:
        return "its outputs have another form"
    largest = float(expected.abs().max())
    error = float((expected.double() - found.double()).abs().max())
    if error > _ALLOWED[like.dtype] * max(largest, 1e-3):
        return f"it computes something else: an error of {error:.2g} where the largest result is {largest:.2g}"
    return ""


def _unfit(like: torch.Tensor) -> str:
    """Why nothing can be proved with activations like a tensor; "" if it can."""
    if like.is_meta:
        return "its weights are not loaded"
    if is_spread(like):
        return SPREAD
    return "" if like.dtype in _ALLOWED else f"its weights are {str(like.dtype).removeprefix('torch.')}"
