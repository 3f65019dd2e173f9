"""Random tensors of the kinds that verification uses, made on the generator's device in their own dtype.

A problem may have a billion elements: nothing here makes a copy in a wider dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

ONE_IN = 997
"""Outliers are as rare as one element in this many; a prime, so that they do not line up with a row's length."""
FEWEST_ROWS = 4
"""A problem of fewer rows keeps them all finite: with one or two given up, hardly any would be left."""


def normal(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Standard normal numbers; of int8 and uint8 any of theirs, of float8 what rounding makes of float32's."""
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return torch.randint(info.min, info.max + 1, shape, dtype=dtype, device=generator.device, generator=generator)
    if dtype.itemsize == 1:
        return torch.randn(shape, device=generator.device, generator=generator).to(dtype)
    return torch.randn(shape, dtype=dtype, device=generator.device, generator=generator)


def constant(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator, value: float) -> torch.Tensor:
    """One number everywhere."""
    return torch.full(shape, value, dtype=dtype, device=generator.device)


def plant_outliers(x: torch.Tensor, magnitude: float, generator: torch.Generator) -> torch.Tensor:
    """Set random elements of ``x``, at least one, to plus or minus ``magnitude``."""
    flat = x.view(-1)
    if flat.numel() == 0:
        return x
    count = flat.numel() // ONE_IN + 1
    places = torch.randint(flat.numel(), (count,), device=x.device, generator=generator)
    signs = torch.randint(2, (count,), device=x.device, generator=generator) * 2 - 1
    flat[places] = (signs * magnitude).to(x.dtype)
    # the same place drawn twice may get either sign; a fixed one keeps at least one positive
    flat[places[:1]] = magnitude
    return x


def plant_special(x: torch.Tensor, values: Sequence[float]) -> torch.Tensor:
    """Spread ``values`` over ``x``: as many of them as it has room for."""
    flat = x.view(-1)
    if count := min(len(values), flat.numel()):
        special = torch.tensor(values[:count], dtype=x.dtype, device=x.device)
        flat[torch.arange(count, device=x.device) * (flat.numel() // count)] = special
    return x


def plant_in_rows(x: torch.Tensor, values: Sequence[float], generator: torch.Generator) -> torch.Tensor:
    """Put each of ``values``, such as NaN, at a random place of ``x`` [rows, cols], each in a random row of its own.

    Whoever swallows a NaN is seen in that row; all others stay what they are, and show what the kind is for. So this
    goes with a kind that every row is alike in: a single outlier might stand in the very row that is given up.
    Nothing happens to fewer rows than ``FEWEST_ROWS``.
    """
    rows, cols = x.shape
    if rows < FEWEST_ROWS:
        return x
    count, device = len(values), x.device
    first = torch.randint(rows, (1,), device=device, generator=generator)
    step = torch.randint(1, rows // count + 1, (1,), device=device, generator=generator)
    chosen = (first + step * torch.arange(count, device=device)) % rows
    places = chosen * cols + torch.randint(cols, (count,), device=device, generator=generator)
    for place, value in zip(places.split(1), values, strict=True):
        # not by an index: the number would be copied to the device, which waits for it
        x.view(-1).index_fill_(0, place, value)
    return x
