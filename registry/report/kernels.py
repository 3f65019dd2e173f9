"""The page of one implementation: its problems, whom it beats where, its trials and the resources of its kernels."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, permutations
from typing import Any

from .facts import ProblemFacts, Section, Timed
from .figures import geometric_mean, tied_with
from .formats import plain
from .tally import Best, ParameterValue, ValueFigures

MOST_CONFIGS = 120
"""Rows of a page's table of configurations."""


@dataclass(frozen=True)
class KernelTime:
    """One problem: the implementation's best time, and that time over the winner's; None if only searched."""

    facts: ProblemFacts
    timed: Timed
    over_best: float | None
    won: bool
    trials: int


@dataclass(frozen=True)
class Meeting:
    """The implementation against one other, over the problems where the finals timed both.

    ``ratio`` is the geometric mean of the other's time over its own; ``most`` and ``least`` are the largest and the
    smallest ratio, with the problem. A pair is tied where the finals could not tell it apart.
    """

    other: str
    faster: int
    tied: int
    slower: int
    ratio: float
    most: tuple[float, ProblemFacts]
    least: tuple[float, ProblemFacts]


@dataclass(frozen=True)
class SettingFigures:
    """One value of a parameter: its trials, those that were right, and what it costs.

    ``over_best`` is the median, over problems, of the best time with it over the best time of the implementation.
    """

    parameter: str
    value: str
    trials: int
    right: int
    over_best: float | None


@dataclass(frozen=True)
class KernelPage:
    """All that a page shows of one implementation of a section's op."""

    anchor: str
    implementation: str
    fingerprints: Sequence[str]
    wins: int
    times: Sequence[KernelTime]
    meetings: Sequence[Meeting]
    settings: Sequence[SettingFigures]
    configs: Sequence[tuple[ProblemFacts, Best, float]]
    outcomes: Mapping[str, int]
    resources: bool

    @property
    def trials(self) -> int:
        return sum(self.outcomes.values())


def kernels(section: Section, anchor: str) -> list[KernelPage]:
    """The pages of a section's implementations, in alphabetical order; their anchors begin with ``anchor``."""
    tried, meetings = _tried(section), _meetings(section)
    return [
        _kernel(section, name, f"{anchor}-k{number}", tried[name], meetings[name])
        for number, name in enumerate(section.implementations)
    ]


def _kernel(section: Section, name: str, anchor: str, tried: _Tried, meetings: Sequence[Meeting]) -> KernelPage:
    times = [_time(name, facts, tried) for facts in section.problems if name in facts.timed]
    configs = (
        (facts, best, best.us / facts.search.fastest[name][0].us)
        for facts in section.problems
        for best in facts.search.fastest.get(name, ())
    )
    return KernelPage(
        anchor,
        name,
        sorted(tried.fingerprints),
        sum(time.won for time in times),
        times,
        meetings,
        _settings(name, section.problems),
        list(islice(configs, MOST_CONFIGS)),
        dict(tried.outcomes),
        any(time.timed.resources for time in times),
    )


def _time(name: str, facts: ProblemFacts, tried: _Tried) -> KernelTime:
    won = facts.decision is not None and facts.decision.candidate.implementation == name
    return KernelTime(facts, facts.timed[name], facts.speedup(name), won, tried.trials[facts.problem.key])


@dataclass(frozen=True)
class _Tried:
    """An implementation's trials: by status, by problem, and the fingerprints of what was tried or won."""

    outcomes: Counter[str] = field(default_factory=Counter)
    trials: Counter[str] = field(default_factory=Counter)
    fingerprints: set[str] = field(default_factory=set)


def _tried(section: Section) -> Mapping[str, _Tried]:
    """Each implementation's trials, counted in one pass over the problems: there may be thousands of these."""
    found = {name: _Tried() for name in section.implementations}
    for facts in section.problems:
        for (name, status), count in facts.search.outcomes.items():
            found[name].outcomes[status] += count
            found[name].trials[facts.problem.key] += count
        for name, fingerprint in facts.search.sources:
            found[name].fingerprints.add(fingerprint)
        if facts.decision is not None:
            winner = facts.decision.candidate
            found[winner.implementation].fingerprints.add(winner.fingerprint)
    return found


class _Ratios:
    """The times of one implementation over those of another."""

    def __init__(self, ratio: float, facts: ProblemFacts) -> None:
        self.all: list[float] = []
        self.counts: Counter[str] = Counter()
        self.most = self.least = (ratio, facts)

    def add(self, ratio: float, facts: ProblemFacts, tied: bool) -> None:
        self.all.append(ratio)
        self.counts["tied" if tied else "faster" if ratio > 1 else "slower"] += 1
        if ratio > self.most[0]:
            self.most = ratio, facts
        if ratio < self.least[0]:
            self.least = ratio, facts


def _meetings(section: Section) -> Mapping[str, Sequence[Meeting]]:
    """How each implementation fares against those that the finals timed beside it, the largest ratio first."""
    met: dict[tuple[str, str], _Ratios] = {}
    for facts in section.decided:
        if facts.decision is None or facts.decision.is_noise:
            continue
        tied = _Ties(facts)
        times = {**facts.baselines, facts.decision.candidate.implementation: 1.0}
        for (name, mine), (other, others) in permutations(times.items(), 2):
            ratio = others / mine
            pair = met.get((name, other))
            if pair is None:
                pair = met[name, other] = _Ratios(ratio, facts)
            pair.add(ratio, facts, tied.are(name, other, ratio))
    names = section.implementations
    return {
        name: sorted(
            (_meeting(other, met[name, other]) for other in names if (name, other) in met), key=lambda one: -one.ratio
        )
        for name in names
    }


def _meeting(other: str, ratios: _Ratios) -> Meeting:
    counts, mean = ratios.counts, geometric_mean(ratios.all)
    assert mean is not None
    return Meeting(other, counts["faster"], counts["tied"], counts["slower"], mean, ratios.most, ratios.least)


class _Ties:
    """Whether the noise of a problem's finals hides a difference, or the decision says so of its winner and another."""

    def __init__(self, facts: ProblemFacts) -> None:
        decision = facts.decision
        assert decision is not None
        self._hidden = math.log1p(max(decision.aa or 0.0, 0.0))
        self._winner = decision.candidate.implementation
        self._tied = {self._winner, *tied_with(facts)}

    def are(self, name: str, other: str, ratio: float) -> bool:
        named = self._winner in {name, other} and name in self._tied and other in self._tied
        return named or abs(math.log(ratio)) <= self._hidden


def _settings(name: str, problems: Iterable[ProblemFacts]) -> list[SettingFigures]:
    """Each value of each parameter; parameters of which only one value was tried are left out."""
    tried: dict[ParameterValue, ValueFigures] = {}
    ratios: dict[ParameterValue, list[float]] = {}
    for facts in problems:
        best = facts.search.best_us(name)
        for place, one in facts.search.settings.get(name, {}).items():
            total = tried.get(place)
            if total is None:
                total, ratios[place] = tried.setdefault(place, ValueFigures()), []
            total.trials += one.trials
            total.right += one.right
            if best is not None and one.us < math.inf:
                ratios[place].append(one.us / best)
    values = Counter(parameter for parameter, _ in tried)
    return [
        SettingFigures(
            parameter,
            plain(value),
            total.trials,
            total.right,
            statistics.median(ratios[parameter, value]) if ratios[parameter, value] else None,
        )
        for (parameter, value), total in sorted(tried.items(), key=_order)
        if values[parameter] > 1
    ]


def _order(entry: tuple[tuple[str, Any], object]) -> tuple[str, bool, float, str]:
    """The sort key of a parameter's value: first the parameter, then numbers by size, then texts."""
    (parameter, value), _ = entry
    number = isinstance(value, int | float)
    return parameter, not number, float(value) if number else 0.0, str(value)
