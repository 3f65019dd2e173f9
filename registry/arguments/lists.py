"""Flattening a call's lists into single values, for code that takes no lists, and restoring them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

Lengths = tuple[int | None, ...]
"""For each value the length of its list, None for one that is no list."""


def one_by_one(values: Sequence[Any]) -> tuple[tuple[Any, ...], Lengths]:
    """The values with every list replaced by its items, and the lengths of the lists, for ``grouped``."""
    lengths = tuple(len(value) if isinstance(value, tuple) else None for value in values)
    each = (value if isinstance(value, tuple) else (value,) for value in values)
    return tuple(itertools.chain.from_iterable(each)), lengths


def grouped(items: Iterable[Any], lengths: Lengths) -> tuple[Any, ...]:
    """The values from the ``items`` and ``lengths`` that ``one_by_one`` returned: its inverse."""
    left = iter(items)
    return tuple(next(left) if length is None else tuple(itertools.islice(left, length)) for length in lengths)
