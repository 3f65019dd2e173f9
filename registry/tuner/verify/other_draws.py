"""Compares samples on the timed integers with samples on those of other draws.

Single elements of floating tensors change between samples, and of integers that an op says to be independent. Other
integers may be indices, offsets or codes, and no change of a few is known to make sense: they change all together, for
samples that are not timed. A candidate that remembers what it made of them takes longer then.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
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
        """Whether so many pairs more were within the bound than beyond it, or these are chance."""
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


def is_alike(shown: Mapping[int, Any], drawn: Mapping[int, Any]) -> bool:
    """Whether tensors of integers, by place, have the forms and about the sums of others, and are not all equal."""
    pairs = list(zip(tensors_in(tuple(shown.values())), tensors_in(tuple(drawn.values())), strict=True))
    if any(one.shape != other.shape or one.stride() != other.stride() for one, other in pairs):
        return False
    integers = [(one, other) for one, other in pairs if not (one.is_floating_point() or one.is_complex())]
    sums = [(float(one.double().sum()), float(other.double().sum())) for one, other in integers]
    are_near = all(abs(one - other) <= _SAME_SUM * max(abs(one), abs(other)) for one, other in sums)
    return are_near and not all(torch.equal(one, other) for one, other in pairs)
