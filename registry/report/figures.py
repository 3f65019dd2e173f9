"""Aggregates: wins, geometric means of ratios, how fast searches came close to their best, failures by cause."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from .facts import ProblemFacts, Section
from .tally import GIVEN_UP

COMPILED = "torch.compile"
NEAR = 0.01
"""Regret at which a search counts as having found the best."""
_MOST_MESSAGES = 3


@dataclass(frozen=True)
class Overview:
    """The aggregates of a section. Ratios are geometric means over the problems where both implementations ran.

    Problems whose ratios are noise are left out of these.
    """

    section: Section
    wins: list[tuple[str, int]]
    over_torch: float | None
    over_compile: float | None
    of_floor: float | None
    noise: tuple[float, float] | None


def overview(section: Section) -> Overview:
    """The overview of a section: wins, ratios, the median fraction of the floor, the median and largest A/A noise."""
    decisions = [facts.decision for facts in section.decided if facts.decision is not None]
    told = [facts for facts in section.decided if facts.decision is None or not facts.decision.is_noise]
    noise = [decision.aa for decision in decisions if decision.aa is not None]
    fractions = [fraction for facts in section.decided if (fraction := facts.fraction_of_floor) is not None]
    return Overview(
        section,
        Counter(decision.candidate.implementation for decision in decisions).most_common(),
        geometric_mean(facts.speedup(section.baseline) for facts in told),
        geometric_mean(facts.speedup(COMPILED) for facts in told),
        statistics.median(fractions) if fractions else None,
        (statistics.median(noise), max(noise)) if noise else None,
    )


def geometric_mean(ratios: Iterable[float | None]) -> float | None:
    """The geometric mean of the values that are known and positive; None where there are none."""
    logs = [math.log(ratio) for ratio in ratios if ratio]
    return math.exp(statistics.fmean(logs)) if logs else None


@dataclass(frozen=True)
class Descent:
    """One problem's search: (trial number from 1, regret) wherever the best so far improved; the last regret is 0."""

    facts: ProblemFacts
    trials: int
    steps: tuple[tuple[int, float], ...]

    def at(self, trial: int) -> float | None:
        """The regret after ``trials`` trials; None while nothing right was found."""
        reached = bisect_right(self.steps, trial, key=itemgetter(0))
        return self.steps[reached - 1][1] if reached else None

    @property
    def near_after(self) -> int:
        """The number of trials until the best so far was within NEAR of the final best."""
        return next(number for number, regret in self.steps if regret <= NEAR)


def descents(section: Section) -> list[Descent]:
    """The descent of every problem where something right was found.

    The regret is the best time so far over the search's final best, less 1.
    """
    found = []
    for facts in section.problems:
        if steps := facts.search.steps:
            final = steps[-1][1]
            relative = tuple((number, us / final - 1) for number, us in steps)
            found.append(Descent(facts, facts.search.trials, relative))
    return found


@dataclass(frozen=True)
class Failure:
    """A message, and how many trials ended with it."""

    implementation: str
    status: str
    message: str
    count: int


@dataclass(frozen=True)
class Statuses:
    """Trials of a section by outcome; ``GIVEN_UP``: status ``ok``, but too slow to be timed completely."""

    names: list[str]
    counts: dict[str, Counter[str]]
    failures: list[Failure]
    total: int


def statuses(section: Section) -> Statuses:
    """Counts by implementation and status, and the most frequent messages of what failed."""
    counts: dict[str, Counter[str]] = {}
    messages: Counter[tuple[str, str, str]] = Counter()
    for facts in section.problems:
        for (name, status), count in facts.search.outcomes.items():
            counts.setdefault(name, Counter())[status] += count
        messages.update(facts.search.failures)
    names = {status for counter in counts.values() for status in counter}
    ordered = [name for name in ("ok", GIVEN_UP) if name in names]
    ordered += sorted(names - set(ordered))
    total = sum(sum(counter.values()) for counter in counts.values())
    return Statuses(ordered, dict(sorted(counts.items())), _most_frequent(messages), total)


def _most_frequent(messages: Counter[tuple[str, str, str]]) -> list[Failure]:
    taken: Counter[tuple[str, str]] = Counter()
    failures = []
    for (name, status, message), count in messages.most_common():
        taken[name, status] += 1
        if taken[name, status] <= _MOST_MESSAGES:
            failures.append(Failure(name, status, message, count))
    return sorted(failures, key=lambda failure: (failure.implementation, failure.status, -failure.count))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True)
class Rival:
    """The fastest other implementation in a problem's finals; ``tied`` if the finals found no difference."""

    implementation: str
    ratio: float
    tied: bool


def rival(facts: ProblemFacts) -> Rival | None:
    """The rival of the winner in a problem's finals; None where no other implementation entered."""
    if facts.decision is None or not facts.baselines:
        return None
    name, ratio = min(facts.baselines.items(), key=lambda entry: entry[1])
    hidden = abs(math.log(ratio)) <= math.log1p(max(facts.decision.aa or 0.0, 0.0))
    return Rival(name, ratio, hidden or name in tied_with(facts))


def tied_with(facts: ProblemFacts) -> list[str]:
    """Implementations with a candidate that is tied with the winner, including the winner's own."""
    ties = facts.decision.ties if facts.decision is not None else ()
    return list(dict.fromkeys(tie.split(" ", 1)[0] for tie in ties))
