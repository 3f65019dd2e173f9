"""The noise of a run: a candidate against itself, and how ratios vary from process to process.

Three blocks alone say little about their own spread (with two degrees of freedom the t interval is 4.3 standard errors
wide, corrected for three challengers 7.6). All the finals of a run together say it well: the variance of one entrant is
moderated by the variance that is usual at its duration, as in limma (Smyth 2004, "Linear models and empirical Bayes
methods for assessing differential expression in microarray experiments").
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

PAIRS_PER_DECADE = 10
_PERCENTILE = 95
_PRIOR_FREEDOM = 3.0
"""Degrees of freedom of the prior.

The variances of 462 entrants of finals on an H200, over the usual variance of their decade, have the quantiles of F(2,
3): 0.05 to 0.08 of the median at 5%, 2.3 to 2.9 times at 75%, 8 to 12 times at 95%.
"""
_MEDIAN_OF_F = _PRIOR_FREEDOM / 2 * (2 ** (2 / _PRIOR_FREEDOM) - 1)
"""Median of F(2, _PRIOR_FREEDOM); two, because a variance over three blocks has two degrees of freedom."""
_FEW = 4.0
"""With this many variances the prior (a median of widely scattered values) counts half its degrees of freedom."""


class Pair(NamedTuple):
    """A candidate that entered a block twice: its time in µs, and the ratio of its two entrants' times."""

    us: float
    ratio: float


@dataclass(frozen=True)
class Prior:
    """The usual variance of a block's median log ratio, and the degrees of freedom that it counts for."""

    variance: float
    freedom: float


@dataclass(frozen=True)
class Noise:
    """Noise of one run. Durations are µs.

    ``decided``: pairs over the first three blocks of one problem's finals; ``single``: pairs within one process, of
    blocks and of the machine's own noise; ``variances``: (duration, variance over the three blocks) of every challenger
    about as fast as the incumbent; ``copies``: (duration, variance) of the incumbents' copies; ``devices``: variance of
    a log ratio between devices of one model, 0.0 where nothing tells.
    """

    decided: tuple[Pair, ...] = ()
    single: tuple[Pair, ...] = ()
    variances: tuple[tuple[float, float], ...] = ()
    copies: tuple[tuple[float, float], ...] = ()
    devices: float = 0.0

    def aa(self, us: float) -> float:
        """The relative difference that 95% of same-candidate pairs at that duration do not exceed.

        With fewer than ten decided problems in the decade the pairs of single processes count, which differ more; with
        fewer than ten of these, too, the pairs of all durations.
        """
        for pairs in (_near(self.decided, us), _near(self.single, us)):
            if len(pairs) >= PAIRS_PER_DECADE:
                return _high(pairs)
        return _high(self.single or self.decided)

    def finals_like(self, durations: Collection[float]) -> int:
        """The number of known finals whose incumbents took about as long as one of these durations in µs."""
        return sum(any(same_decade(pair.us, us) for us in durations) for pair in self.decided)

    def prior(self, us: float) -> Prior:
        """The usual variance at that duration: the median of the variances in its decade, or of all if these are few.

        Copies count only where challengers are few: they vary less, since they share a kernel.
        """
        near = [variance for duration, variance in self.variances if same_decade(duration, us)]
        everything = self.variances if len(self.variances) >= PAIRS_PER_DECADE else self.variances + self.copies
        chosen = near if len(near) >= PAIRS_PER_DECADE else [variance for _, variance in everything]
        if not chosen:
            return Prior(0.0, 0.0)
        freedom = _PRIOR_FREEDOM * len(chosen) / (len(chosen) + _FEW)
        return Prior(float(np.median(chosen)) / _MEDIAN_OF_F, freedom)

    def __add__(self, other: Noise) -> Noise:
        return Noise(
            self.decided + other.decided,
            self.single + other.single,
            self.variances + other.variances,
            self.copies + other.copies,
            max(self.devices, other.devices),
        )

    @property
    def details(self) -> Mapping[str, Any]:
        """The noise as stored with a run: the A/A noise of every decade (by its middle), pairs and variances."""
        durations = [pair.us for pair in (*self.decided, *self.single)]
        decades = sorted({round(math.log10(us)) for us in durations if us > 0})
        return {
            "aa": {f"{10.0**decade:g} µs": _short(self.aa(10.0**decade)) for decade in decades},
            **{name: [[_short(us), _short(value)] for us, value in getattr(self, name)] for name in _PARTS},
        }

    @classmethod
    def of_details(cls, details: Mapping[str, Any]) -> Noise:
        """The noise that ``details`` describes; empty where they have another form: a database may hold anything."""
        try:
            parts = [tuple(Pair(float(us), float(value)) for us, value in details.get(name, ())) for name in _PARTS]
        except (TypeError, ValueError, AttributeError):
            return cls()
        decided, single, variances, copies = parts
        positive = all(pair.us > 0 for part in parts for pair in part) and all(
            pair.ratio > 0 for pair in decided + single
        )
        return cls(decided, single, variances, copies) if positive else cls()


_PARTS = tuple(field.name for field in fields(Noise) if field.name != "devices")


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _near(pairs: Sequence[Pair], us: float) -> list[Pair]:
    return [pair for pair in pairs if same_decade(pair.us, us)]


def same_decade(one: float, other: float) -> bool:
    """Whether two durations differ by a factor of less than about three: noise of the one tells about the other."""
    return one > 0 and other > 0 and abs(math.log10(one / other)) <= 0.5


def _high(pairs: Sequence[Pair]) -> float:
    if not pairs:
        return 0.0
    return float(np.expm1(np.percentile(np.abs(np.log([pair.ratio for pair in pairs])), _PERCENTILE)))
