"""A call's values with the items of their lists one by one, for what knows no lists, and back."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

Lengths = tuple[int | None, ...]
"""For each value the length of its list, None for one that is no list."""


def one_by_one(values: Sequence[Any]) -> tuple[tuple[Any, ...], Lengths]:
    """The values with the items of every list in its place, and what ``grouped`` needs to undo that."""
    lengths = tuple(len(value) if isinstance(value, tuple) else None for value in values)
    each = (value if isinstance(value, tuple) else (value,) for value in values)
    return tuple(itertools.chain.from_iterable(each)), lengths


def grouped(items: Iterable[Any], lengths: Lengths) -> tuple[Any, ...]:
    """The values that ``one_by_one`` made ``items`` and ``lengths`` of."""
    left = iter(items)
    return tuple(next(left) if length is None else tuple(itertools.islice(left, length)) for length in lengths)
