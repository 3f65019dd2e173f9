"""The sizes at which a plan is verified, to be valid for all sizes of a range."""

from __future__ import annotations

from collections.abc import Iterator

from .other_sizes import MULTIPLE


def divisibility(size: int) -> int:
    """The greatest power of two up to 16 that divides a size: compilers specialise on it."""
    return min(size & -size, MULTIPLE)


def ends_by_divisibility(low: int, high: int) -> Iterator[tuple[int, int]]:
    """For each divisibility in the range ``low`` to ``high`` its least and its greatest size."""
    power = MULTIPLE
    while power:
        step = power if power == MULTIPLE else 2 * power
        first, last = low + (power - low) % step, high - (high - power) % step
        if first <= last:
            yield first, last
        power //= 2
