"""Static dimensions that have winners, by how far they are from those of a problem that has none.

A 4-bit product of a weight 12288 x 4096 that nobody tuned is best served by what won for 28672 x 4096: the
implementation and its configuration, if they can run it. It is a default still: nothing was measured for these.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...correctness.range_ends import divisibility
from ...problem import Value

FARTHEST = 3.0
"""Octaves: farther away winners say no more than what is learnt from all of them."""

HALVES = {"float16": 0.0, "bfloat16": 0.25}
"""Octaves between dtypes of equal size, whose kernels differ in little but their name."""

_OF_DIVISIBILITY = 0.25
"""Octaves for each power of two, up to 16, that divides one of two sizes and not the other: 1 between 4096 and 4097."""

_MOST = 8
"""Groups of winners that are looked at, those of the nearest static dimensions."""


@dataclass(frozen=True)
class Similar:
    """Static dimensions that have winners, ``octaves`` away from those of a problem."""

    static: Mapping[str, Value]
    octaves: float

    def from_all(self, along: float) -> float:
        """The distance in all dimensions of a winner that is ``along`` octaves away in the dynamic ones."""
        return math.hypot(self.octaves, along)


class SimilarStatics:
    """The values of ``static`` dimensions that winners have, as ``neighbours.grouped`` keys them."""

    def __init__(self, static: Sequence[str], keys: Iterable[Hashable]) -> None:
        self._static = static
        self._of_texts: dict[Hashable, tuple[list[tuple[Any, ...]], NDArray[np.float64]]] = {}
        by_texts: dict[Hashable, list[tuple[tuple[Any, ...], list[float]]]] = {}
        for key in keys:
            values = key if len(static) != 1 else (key,)
            assert isinstance(values, tuple)
            if (split := _split(values)) is not None:
                by_texts.setdefault(split[0], []).append((values, split[1]))
        for texts, found in by_texts.items():
            numbers = np.array([each for _, each in found], dtype=np.float64)
            self._of_texts[texts] = [values for values, _ in found], numbers

    def near(self, dims: Mapping[str, Value]) -> list[Similar]:
        """The nearest within ``FARTHEST`` of ``dims``: other numbers, equal texts."""
        split = _split(tuple([dims[name] for name in self._static]))
        known = None if split is None else self._of_texts.get(split[0])
        if split is None or known is None or not split[1]:
            return []
        values, numbers = known
        octaves = np.sqrt(((numbers - np.array(split[1])) ** 2).sum(axis=1))
        order = np.argsort(octaves, kind="stable")[: _MOST + 1].tolist()
        close = [index for index in order if 0 < octaves[index] <= FARTHEST][:_MOST]
        return [Similar(dict(zip(self._static, values[index], strict=True)), float(octaves[index])) for index in close]


def _split(values: tuple[Any, ...]) -> tuple[Hashable, list[float]] | None:
    """Texts and booleans with their places, and coordinates in octaves of the others; None for what has none.

    A size has another one for its divisibility, on which compilers specialise and by which vectors are loaded.
    """
    texts: list[tuple[int, Value]] = []
    numbers: list[float] = []
    for place, value in enumerate(values):
        if value in HALVES:
            texts.append((place, "half"))
            numbers.append(HALVES[value])
        elif isinstance(value, bool | str):
            texts.append((place, value))
        elif isinstance(value, int | float) and 0 < value < 2**1000:
            numbers.append(math.log2(value))
            if isinstance(value, int):
                numbers.append(_OF_DIVISIBILITY * math.log2(divisibility(value)))
        else:
            return None
    return tuple(texts), numbers
