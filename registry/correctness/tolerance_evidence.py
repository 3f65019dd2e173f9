"""Evidence, collected case by case, about results that an op's tolerance accepts although they were not computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from .bits import as_bits, same_bits
from .bounds import Bounds
from .magnitudes import calculable

ZEROS = "an all-zero output"
CONSTANT = "an all-constant output"
PREVIOUS = "the output of a previous call with other inputs"
UNCHANGED = "what was there before"

ErrorRange = tuple[torch.Tensor, torch.Tensor]
"""The lowest and the highest accepted value of each element."""


@dataclass(frozen=True)
class Case:
    """One result of one call, flattened: the intervals accepted by the tolerance, and by one rounding.

    old    a result of a previous call or old content, None if there is none to compare
    drawn  True if the inputs differ from draw to draw
    """

    by_tolerance: ErrorRange
    by_rounding: ErrorRange
    old: torch.Tensor | None
    drawn: bool

    @classmethod
    def of(
        cls, dtype: torch.dtype, bounds: Bounds, right: torch.Tensor, old: torch.Tensor | None, *, drawn: bool
    ) -> Case | None:
        """The case of one result of ``dtype``: ``right`` by the reference in float64, ``old`` in that dtype.

        Only finite numbers count, since NaN does not depend on a tolerance; None if there are none.
        """
        if bounds.are_exact:
            # bits, as integers, can be compared for every dtype
            only = as_bits(bounds.low).flatten()
            return cls((only, only), (only, only), None if old is None else as_bits(old).flatten(), drawn)
        finite = bounds.low.isfinite() & bounds.high.isfinite()
        if not finite.any():
            return None
        wide, before = right[finite].double(), None if old is None else calculable(old)[finite]
        room = torch.finfo(dtype).eps * wide.abs().max()
        return cls((bounds.low[finite], bounds.high[finite]), (wide - room, wide + room), before, drawn)


@dataclass
class Accepted:
    """The results without computation that every case so far has accepted: zeros, a constant, an old result.

    ``stale`` names the old result in words; ``compared`` of the ``cases`` had one. ``numbers``: elements of all cases.
    """

    stale: str
    cases: int = 0
    numbers: int = 0
    compared: int = 0
    keeps_stale: bool = True
    zeros: bool = True
    low: float = -math.inf
    high: float = math.inf

    def take_in(self, interval: ErrorRange, old: torch.Tensor | None) -> None:
        low, high = interval
        self.cases += 1
        self.numbers += low.numel()
        self.zeros = self.zeros and bool(((low <= 0) & (high >= 0)).all())
        self.low, self.high = max(self.low, low.max().item()), min(self.high, high.min().item())
        if old is not None:
            self.compared += 1
            self.keeps_stale = self.keeps_stale and bool(((low <= old) & (old <= high)).all())

    @property
    def found(self) -> list[str]:
        """The results that every case accepted, in words; empty before the first case."""
        if not self.cases:
            return []
        # a single number, such as the loss of a single example, is always constant
        constant = self.numbers > 1 and self.low <= self.high
        found = [ZEROS] if self.zeros else [CONSTANT] if constant else []
        return found + ([self.stale] if self.compared and self.keeps_stale else [])


class Seen:
    """Evidence about one result in one dtype. ``stale`` names an old result in words."""

    def __init__(self, stale: str) -> None:
        self._by_tolerance = Accepted(stale)
        self._by_rounding = Accepted(stale)
        self._drawn = False

    def take_in(self, case: Case) -> None:
        self._drawn = self._drawn or case.drawn
        self._by_tolerance.take_in(case.by_tolerance, case.old)
        self._by_rounding.take_in(case.by_rounding, case.old)

    @property
    def shows(self) -> bool:
        """True if there was a case."""
        return self._by_tolerance.cases > 0

    @property
    def found(self) -> list[str]:
        """The results that the tolerance accepted in every case, in words."""
        return self._by_tolerance.found

    def is_right(self, what: str) -> bool:
        """True if ``what``, a result in words, is the right result in every case, whatever the inputs.

        False if the inputs do not differ from draw to draw, since results cannot differ then.
        """
        return self._drawn and what in self._by_rounding.found


class SeenByCompare:
    """Evidence about one result in one dtype that the op's own ``compare`` judges.

    A single constant is tried: the first element of the first right result.
    """

    def __init__(self) -> None:
        self._drawn = False
        self._constant: torch.Tensor | None = None
        self._accepted: dict[str, bool] = {}
        self._right: dict[str, bool] = {}

    def take_in(
        self, right: torch.Tensor, old: Mapping[str, torch.Tensor], accepts: Callable[[torch.Tensor], bool], drawn: bool
    ) -> None:
        """Add one case. ``old``: results that were not computed, by their names in words."""
        if self._constant is None:
            self._constant = right.flatten()[:1].clone()
        self._drawn = self._drawn or drawn
        fakes = {ZEROS: torch.zeros_like(right), CONSTANT: self._constant.expand(right.shape).contiguous()}
        for what, fake in {**fakes, **old}.items():
            self._accepted[what] = self._accepted.get(what, True) and accepts(fake)
            self._right[what] = self._right.get(what, True) and same_bits(fake, right)

    @property
    def shows(self) -> bool:
        """True if there was a case."""
        return bool(self._accepted)

    @property
    def found(self) -> list[str]:
        """The results that ``compare`` accepted in every case, in words."""
        found = [what for what, accepted in self._accepted.items() if accepted]
        return [what for what in found if what != CONSTANT or ZEROS not in found]

    def is_right(self, what: str) -> bool:
        """True if ``what`` is the right result in every case, whatever the inputs."""
        return self._drawn and self._right.get(what, False)
