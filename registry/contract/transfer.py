"""Ranges of a static dimension within which an op lets a winner answer for other sizes."""

from __future__ import annotations

from collections.abc import Callable

from ..author_code import at
from ..errors import InvalidDefinitionError

Range = Callable[[int], tuple[int, int]]
"""``range(size)``: the least and the greatest size of the range that ``size`` is in; equal for all sizes of a range."""


def octave(size: int) -> tuple[int, int]:
    """The range of sizes that round up to one power of two, to which kernels pad a row: (513, 1024) for 1000."""
    high = 1 << (size - 1).bit_length()
    return high // 2 + 1, high


def checked_range(name: str, declared: Range, size: int) -> tuple[int, int]:
    """``declared(size)``. Raises InvalidDefinitionError unless it is one range for all sizes that it contains."""
    found = declared(size)
    sound = isinstance(found, tuple) and len(found) == 2 and all(type(end) is int for end in found)
    if not sound or not 0 < found[0] <= size <= found[1]:
        raise InvalidDefinitionError(
            f"transfers: {name}: the range of {size} is {found!r:.80}{at(declared)}",
            hint=f"expected its least and greatest size, e.g. {octave(size)}, as registry.octave tells them",
        )
    for end in found:
        if declared(end) != found:
            raise InvalidDefinitionError(
                f"transfers: {name}: {size} is in the range {found}, but {end} in {declared(end)!r:.80}{at(declared)}",
                hint="each size belongs to one range",
            )
    return found
