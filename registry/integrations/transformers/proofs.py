"""Numerical proof that two functions of a tensor are one, before a module is replaced."""

from __future__ import annotations

from collections.abc import Callable

import torch

_ALLOWED = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
"""The largest error by dtype, relative to the largest result: some roundings, as sums in another order differ."""

_ROWS = 5

Function = Callable[[torch.Tensor], torch.Tensor]


def disagreement(own: Function, other: Function, cols: int, like: torch.Tensor) -> str:
    """How ``other`` differs from a module's ``own`` function of ``[rows, cols]``; "" if it does not.

    ``like`` has the dtype and the device of the module's activations.
    """
    if like.is_meta:
        return "its weights are not loaded"
    if like.dtype not in _ALLOWED:
        return f"its weights are {str(like.dtype).removeprefix('torch.')}"
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
