"""Static dimensions that have winners, by their distance from the static dimensions of a problem without winners.

For an untuned 4-bit product with a weight of 12288 x 4096 the best choice is the winner for 28672 x 4096, the
implementation and its configuration, if it can run. It counts as a default: nothing was measured for this weight.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....correctness.range_ends import divisibility
from ....problem import Value

FARTHEST = 3.0
"""Distance in octaves beyond which winners are no better evidence than the rule learnt from all of them."""

HALVES = {"float16": 0.0, "bfloat16": 0.25}
"""Places of half dtypes on an axis in octaves: their kernels hardly differ."""

_OF_DIVISIBILITY = 0.25
"""Octaves for each power of two, up to 16, that divides only one of two sizes: 1 octave between 4096 and 4097."""

_MOST = 8
"""The most groups of winners that are used: those of the nearest static dimensions."""


@dataclass(frozen=True)
class Similar:
    """Static dimensions that have winners, ``octaves`` away from those of a problem."""

    static: Mapping[str, Value]
    octaves: float

    def from_all(self, along: float) -> float:
        """The distance in all dimensions of a winner that is ``along`` octaves away in the dynamic ones."""
        return math.hypot(self.octaves, along)


class SimilarStatics:
    """The values of the ``static`` dimensions of all winners; ``keys`` are those of ``neighbours.grouped``."""

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
        """The nearest values within ``FARTHEST`` of ``dims``: numbers may differ, texts must be equal."""
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
    """(texts and booleans with their places, coordinates of the numbers in octaves); None for a value without any.

    A size has a second coordinate for its divisibility, which compilers and vector loads depend on.
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
