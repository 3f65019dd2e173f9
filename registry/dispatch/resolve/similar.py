"""Static dimensions that have winners, by how far they are from those of a problem that has none.

A 4-bit product of a weight 12288 x 4096 that nobody tuned is best served by what won for 28672 x 4096: the
implementation and its configuration, if they can run it. It is a default still: nothing was measured for these.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...problem import Value

FARTHEST = 3.0
"""Octaves: further away winners say no more than what is learnt from all of them."""

_MOST = 3
"""Groups of winners that are asked, the nearest first: of some no winner holds any more."""


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

    def nearest(self, dims: Mapping[str, Value]) -> list[dict[str, Value]]:
        """Static dimensions within ``FARTHEST`` of other numbers than those of ``dims``, texts equal, nearest first."""
        split = _split(tuple([dims[name] for name in self._static]))
        known = None if split is None else self._of_texts.get(split[0])
        if split is None or known is None or not split[1]:
            return []
        octaves = np.sqrt(((known[1] - np.array(split[1])) ** 2).sum(axis=1))
        order = np.argsort(octaves, kind="stable")[: _MOST + 1].tolist()
        close = [index for index in order if 0 < octaves[index] <= FARTHEST][:_MOST]
        return [dict(zip(self._static, known[0][index], strict=True)) for index in close]


def _split(values: tuple[Any, ...]) -> tuple[Hashable, list[float]] | None:
    """Texts and booleans with their places, and the base-2 logarithms of the numbers; None for what has none."""
    texts, numbers = [], []
    for place, value in enumerate(values):
        if isinstance(value, bool | str):
            texts.append((place, value))
        elif isinstance(value, int | float) and 0 < value < 2**1000:
            numbers.append(math.log2(value))
        else:
            return None
    return tuple(texts), numbers
