"""Random tensors of the kinds that verification uses, made on the generator's device in their own dtype.

A problem may have a billion elements: nothing here makes a copy in a wider dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

ONE_IN = 997
"""One element in this many is an outlier; a prime, so that outliers do not align with a row's length."""
FEWEST_ROWS = 4
"""With fewer rows no NaN or infinity is planted: hardly any finite row would be left to check."""


def normal(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Standard normal numbers, for float8 rounded from float32; for int8 and uint8 uniform over all values."""
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return torch.randint(info.min, info.max + 1, shape, dtype=dtype, device=generator.device, generator=generator)
    if dtype.itemsize == 1:
        return torch.randn(shape, device=generator.device, generator=generator).to(dtype)
    return torch.randn(shape, dtype=dtype, device=generator.device, generator=generator)


def constant(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator, value: float) -> torch.Tensor:
    """A tensor with ``value`` in every element."""
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
    # a place drawn twice may get either sign: set one to be positive, so that at least one is
    flat[places[:1]] = magnitude
    return x


def plant_special(x: torch.Tensor, values: Sequence[float]) -> torch.Tensor:
    """Spread ``values`` over ``x``, evenly; the first ones if ``x`` is smaller."""
    flat = x.view(-1)
    if count := min(len(values), flat.numel()):
        special = torch.tensor(values[:count], dtype=x.dtype, device=x.device)
        flat[torch.arange(count, device=x.device) * (flat.numel() // count)] = special
    return x


def plant_in_rows(x: torch.Tensor, values: Sequence[float], generator: torch.Generator) -> torch.Tensor:
    """Put each of ``values``, such as NaN, at a random place of ``x`` [rows, cols], each in a random row of its own.

    A kernel that drops a NaN fails in that row; the other rows still test the kind's purpose. Use it with kinds whose
    rows are all alike: a single outlier might be in a row that is overwritten. Nothing changes with fewer rows than
    ``FEWEST_ROWS``.
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
        # not by indexing, which would copy the number to the device and wait for it
        x.view(-1).index_fill_(0, place, value)
    return x
