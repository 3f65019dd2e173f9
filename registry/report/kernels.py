"""The page of one implementation: its problems, whom it beats where, its trials and the resources of its kernels."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuning_db import Decision

from .facts import ProblemFacts, Section, Timed
from .figures import geometric_mean, tied_with
from .formats import plain
from .tally import Best, ValueFigures

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
    return [_kernel(section, name, f"{anchor}-k{number}") for number, name in enumerate(section.implementations)]


def _kernel(section: Section, name: str, anchor: str) -> KernelPage:
    outcomes: Counter[str] = Counter()
    for facts in section.problems:
        outcomes.update({status: count for (of, status), count in facts.search.outcomes.items() if of == name})
    times = [_time(name, facts) for facts in section.problems if name in facts.timed]
    configs = [
        (facts, best, best.us / facts.search.fastest[name][0].us)
        for facts in section.problems
        for best in facts.search.fastest.get(name, ())
    ]
    meetings = [_meeting(name, other, section.decided) for other in section.implementations if other != name]
    return KernelPage(
        anchor,
        name,
        sorted(_fingerprints(name, section.problems)),
        sum(time.won for time in times),
        times,
        sorted((one for one in meetings if one is not None), key=lambda one: -one.ratio),
        _settings(name, section.problems),
        configs[:MOST_CONFIGS],
        dict(outcomes),
        any(time.timed.resources for time in times),
    )


def _time(name: str, facts: ProblemFacts) -> KernelTime:
    won = facts.decision is not None and facts.decision.candidate.implementation == name
    trials = sum(count for (of, _), count in facts.search.outcomes.items() if of == name)
    return KernelTime(facts, facts.timed[name], facts.speedup(name), won, trials)


def _fingerprints(name: str, problems: Iterable[ProblemFacts]) -> set[str]:
    """Fingerprints of the implementation's source, as the winners and the searches name it."""
    found = {print_ for facts in problems for of, print_ in facts.search.sources if of == name}
    decisions: Iterable[Decision] = (facts.decision for facts in problems if facts.decision is not None)
    return found | {one.candidate.fingerprint for one in decisions if one.candidate.implementation == name}


def _meeting(name: str, other: str, decided: Sequence[ProblemFacts]) -> Meeting | None:
    """How the implementation fares against another; None where the finals never timed both."""
    counts: Counter[str] = Counter()
    ratios: list[tuple[float, ProblemFacts]] = []
    for facts in decided:
        mine, others = facts.speedup(name), facts.speedup(other)
        if mine and others and facts.decision is not None and not facts.decision.is_noise:
            ratio = others / mine
            ratios.append((ratio, facts))
            counts["tied" if _is_tied(facts, name, other, ratio) else "faster" if ratio > 1 else "slower"] += 1
    if not ratios:
        return None
    mean = geometric_mean(ratio for ratio, _ in ratios)
    assert mean is not None
    ends = [chosen(ratios, key=lambda entry: entry[0]) for chosen in (max, min)]
    return Meeting(other, counts["faster"], counts["tied"], counts["slower"], mean, *ends)


def _is_tied(facts: ProblemFacts, name: str, other: str, ratio: float) -> bool:
    """Whether the noise of the finals hides the difference, or the decision says so of its winner and the other."""
    decision = facts.decision
    assert decision is not None
    hidden = abs(math.log(ratio)) <= math.log1p(max(decision.aa or 0.0, 0.0))
    winner = decision.candidate.implementation
    return hidden or (winner in {name, other} and {name, other} <= {winner, *tied_with(facts)})


def _settings(name: str, problems: Iterable[ProblemFacts]) -> list[SettingFigures]:
    """Each value of each parameter; parameters of which only one value was tried are left out."""
    tried: dict[tuple[str, Any], list[ValueFigures]] = defaultdict(list)
    ratios: dict[tuple[str, Any], list[float]] = defaultdict(list)
    for facts in problems:
        best = facts.search.best.get(name)
        for place, one in facts.search.settings.get(name, {}).items():
            tried[place].append(one)
            if best is not None and one.us < math.inf:
                ratios[place].append(one.us / best.us)
    values = Counter(parameter for parameter, _ in tried)
    found = [
        SettingFigures(
            parameter,
            plain(value),
            sum(one.trials for one in all_),
            sum(one.right for one in all_),
            statistics.median(ratios[parameter, value]) if ratios[parameter, value] else None,
        )
        for (parameter, value), all_ in sorted(tried.items(), key=_order)
    ]
    return [one for one in found if values[one.parameter] > 1]


def _order(entry: tuple[tuple[str, Any], object]) -> tuple[str, bool, float, str]:
    """The sort key of a parameter's value: first the parameter, then numbers by size, then texts."""
    (parameter, value), _ = entry
    number = isinstance(value, int | float)
    return parameter, not number, float(value) if number else 0.0, str(value)
