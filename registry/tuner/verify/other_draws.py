"""Compares samples on the timed integers with samples on those of other draws.

Single elements of floating tensors change between samples, and of integers that an op says to be independent. Other
integers may be indices, offsets or codes, and no change of a few is known to make sense: they change all together, for
samples that are not timed. A candidate that remembers what it made of them takes longer then.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from time import perf_counter
from typing import Any

import torch

from ...arguments.schema import tensors_in
from .verdicts import WrongError

_BOUND = 1.5
"""Times the time on the timed integers: a candidate that takes longer on others remembers these."""
_LONGER = 12
"""Draws beyond the bound that convict, if the shortest of all is beyond it. The time of an honest candidate may depend
on integers; for each of so many draws it is longer only if the timed ones are the quickest by half."""
_SAME_SUM = 0.1
"""The part by which sums of integers may differ: a call on more work may take longer."""
_MOST_DRAWS = 64
"""Draws that are kept for the candidates of a problem."""
_KEPT_BYTES = 64 << 20
"""What they take, but for the first two."""
_UNLIKE = 6
"""Unlike draws, one after the other, after which there are none that are alike."""
_UNLIKE_S, _UNLIKE_BYTES = 1.0, 4 << 30
"""The most seconds that unlike draws take all together, and the most bytes that they fill."""
_DRAWS_S = 5.0
"""The most seconds that all draws take: they are made while a candidate is measured."""
_SUMMED = 1 << 20
"""Integers that are summed at once: a sum first copies them to its own dtype."""
_TOLD = (
    "it takes {:.3g} times as long on integers that it has not met before: it remembers what it made of those that it"
    " met, but other calls bring others"
)


class OtherDraws:
    """Pairs of times on the timed integers, and on those of another draw."""

    def __init__(self) -> None:
        self._pairs: list[tuple[float, float]] = []
        self._alike = self._longer = 0
        self._acquitted = False

    def is_enough(self, wanted: int) -> bool:
        """True once ``wanted`` pairs more were within the bound than beyond it, or those beyond it are chance."""
        return self._acquitted or self._alike - self._longer >= wanted

    def add(self, known_us: float, other_us: float) -> None:
        """Add a pair; raises WrongError."""
        self._pairs.append((known_us, other_us))
        if other_us <= _BOUND * known_us:
            self._alike += 1
            return
        self._longer += 1
        if self._longer < _LONGER:
            return
        times = min(other for _, other in self._pairs) / statistics.median(known for known, _ in self._pairs)
        if times > _BOUND:
            raise WrongError("wrong_result", _TOLD.format(times))
        self._acquitted = True


class AlikeDraws:
    """Arguments of other draws of some inputs, on which a call may take as long as on those that are timed.

    Its time may depend on integers, such as lengths: draws are left out whose sums are others. A draw takes as long as
    all the inputs do, and at some problems none is alike, or each is the same; so it is remembered that there are none.
    """

    def __init__(self, shown: Mapping[int, Any], draw: Callable[[], tuple[Any, ...]]) -> None:
        """``shown``: place -> value of those that are timed. ``draw`` returns all arguments of another draw."""
        self._shown = shown
        self._draw = draw
        self._kept: list[Mapping[int, Any]] = []
        self._most = min(_MOST_DRAWS, max(2, _KEPT_BYTES // max(1, _bytes_of(shown.values()))))
        self._has_ended = False
        self._unlike = self._unlike_bytes = 0
        self._unlike_s = self._seconds = 0.0

    def __iter__(self) -> Iterator[Mapping[int, Any]]:
        for number in range(self._most):
            if number == len(self._kept) and not self._find():
                return
            yield self._kept[number]

    @property
    def nbytes(self) -> int:
        return sum(_bytes_of(each.values()) for each in self._kept)

    def _find(self) -> bool:
        """Keep one more; False if there is none."""
        before = len(self._kept)
        while not self._has_ended and len(self._kept) == before:
            began = perf_counter()
            self._look_at(self._draw(), began)
        return len(self._kept) > before

    def _look_at(self, values: tuple[Any, ...], began: float) -> None:
        drawn = {place: values[place] for place in self._shown}
        tensors = tensors_in(tuple(drawn.values()))
        if all(map(_is_same, self._tensors, tensors)):
            # they are not random at this problem
            self._has_ended = True
            return
        is_alike = self._is_alike(tensors)
        took_s = perf_counter() - began
        self._seconds += took_s
        if is_alike:
            self._kept.append(drawn)
            self._unlike = 0
        else:
            self._unlike += 1
            self._unlike_s += took_s
            self._unlike_bytes += _bytes_of(values)
        self._has_ended = (
            self._unlike >= _UNLIKE
            or self._unlike_s > _UNLIKE_S
            or self._unlike_bytes > _UNLIKE_BYTES
            or self._seconds > _DRAWS_S
        )

    def _is_alike(self, drawn: Sequence[torch.Tensor]) -> bool:
        """Whether these tensors have the forms of those that are timed, and the integers about their sums."""
        if any(not _has_form(one, other) for one, other in zip(self._tensors, drawn, strict=True)):
            return False
        pairs = zip(self._sums, map(_sum, filter(_is_integer, drawn)), strict=True)
        return all(abs(one - other) <= _SAME_SUM * max(abs(one), abs(other)) for one, other in pairs)

    @cached_property
    def _tensors(self) -> list[torch.Tensor]:
        return tensors_in(tuple(self._shown.values()))

    @cached_property
    def _sums(self) -> list[float]:
        return list(map(_sum, filter(_is_integer, self._tensors)))


def _has_form(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.stride() == other.stride()


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return _has_form(one, other) and torch.equal(one, other)


def _is_integer(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _sum(integers: torch.Tensor) -> float:
    parts = [part.sum(dtype=torch.float64) for part in integers.reshape(-1).split(_SUMMED)]
    return float(torch.stack(parts).sum())


def _bytes_of(values: Iterable[Any]) -> int:
    return sum(tensor.nbytes for tensor in tensors_in(tuple(values)))
