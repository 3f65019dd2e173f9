"""The tally of a search: its best times, the trials at which they improved, and the outcomes of its trials."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from tuning_db import CandidateKey
from tuning_db.searches import TrialFigures

GIVEN_UP = "ok, given up"
"""The outcome of trials of status ``ok`` that were too slow to be timed completely."""

FASTEST = 5
"""Number of configurations of an implementation that are kept of a search."""

_LONGEST_MESSAGE = 240
_us = attrgetter("median_us")
_RESOURCES = ("registers", "spill_bytes", "shared_bytes", "threads")


class Best(NamedTuple):
    """One of an implementation's fastest trials: its time, its configuration and what its kernel takes.

    ``resources``: registers and spill_bytes a thread, shared_bytes and threads a block; empty where the trial does not
    tell.
    """

    us: float
    config: Mapping[str, Any]
    resources: Mapping[str, int] = MappingProxyType({})


@dataclass(slots=True)
class ValueFigures:
    """The trials with one value of a parameter: their number, how many were right, the best time (inf if none)."""

    trials: int = 0
    right: int = 0
    us: float = math.inf


ParameterValue = tuple[str, Any]
"""A parameter of an implementation, and one value of it."""


@dataclass(frozen=True)
class Tally:
    """The trials of a search, counted.

    ``fastest`` are each implementation's right trials, one a configuration, fastest first, at most ``FASTEST``.
    ``steps`` are (number of the trial from 1, µs) wherever the best so far improved. ``outcomes`` counts by
    (implementation, status or ``GIVEN_UP``), ``failures`` by (implementation, status, message), ``settings`` by
    implementation and the value of a parameter. ``sources`` are (implementation, fingerprint) of the candidates.
    """

    trials: int = 0
    fastest: Mapping[str, Sequence[Best]] = field(default_factory=dict)
    steps: Sequence[tuple[int, float]] = ()
    outcomes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    failures: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    settings: Mapping[str, Mapping[ParameterValue, ValueFigures]] = field(default_factory=dict)
    sources: Collection[tuple[str, str]] = frozenset()

    @property
    def best(self) -> Mapping[str, Best]:
        """Implementation -> its fastest trial."""
        return {name: trials[0] for name, trials in self.fastest.items()}

    def best_us(self, implementation: str) -> float | None:
        """The time of an implementation's fastest trial; None without a right one."""
        trials = self.fastest.get(implementation)
        return trials[0].us if trials else None


def tally(attempts: Iterable[TrialFigures]) -> Tally:
    """The tally of trials, oldest first."""
    number, fastest_us = 0, math.inf
    timed: dict[str, list[TrialFigures]] = {}
    steps: list[tuple[int, float]] = []
    outcomes: Counter[tuple[str, str]] = Counter()
    failures: Counter[tuple[str, str, str]] = Counter()
    settings: dict[str, dict[ParameterValue, ValueFigures]] = {}
    sources: set[tuple[str, str]] = set()
    for number, attempt in enumerate(attempts, 1):
        candidate, status, censored, us, message, _ = attempt
        name = candidate.implementation
        sources.add((name, candidate.fingerprint))
        outcomes[name, GIVEN_UP if censored and status == "ok" else status] += 1
        right_us = math.inf
        if status != "ok":
            failures[name, status, _first_line(message)] += 1
        elif us is not None and not censored and 0 < us < math.inf:
            right_us = us
            timed.setdefault(name, []).append(attempt)
            if us < fastest_us:
                fastest_us = us
                steps.append((number, us))
        _count(settings.setdefault(name, {}), _values(candidate), status == "ok", right_us)
    fastest = {name: _fastest(trials) for name, trials in timed.items()}
    return Tally(number, fastest, steps, outcomes, failures, settings, sources)


def _fastest(timed: Iterable[TrialFigures]) -> Sequence[Best]:
    """The fastest of right trials, one a configuration; of equally fast ones the older."""
    found: list[Best] = []
    configs: list[Mapping[str, Any]] = []
    for candidate, _, _, us, _, resources in sorted(timed, key=_us):
        if us is None or candidate.config in configs:
            continue
        configs.append(candidate.config)
        found.append(Best(us, candidate.config, _resources(resources)))
        if len(found) == FASTEST:
            break
    return found


def _count(
    settings: dict[ParameterValue, ValueFigures], values: Iterable[ParameterValue], right: bool, us: float
) -> None:
    for place in values:
        tried = settings.get(place)
        if tried is None:
            tried = settings[place] = ValueFigures()
        tried.trials += 1
        if right:
            tried.right += 1
            if us < tried.us:  # noqa: PLR1730  min() takes a sixth of a tally's time
                tried.us = us


# thousands of searches try the same candidates, and hold the values that this makes
@lru_cache(maxsize=16_384)
def _values(candidate: CandidateKey) -> tuple[ParameterValue, ...]:
    """The values of a candidate's parameters, as keys: a value of an import may be a list, which is none."""
    return tuple((name, value if value.__hash__ else repr(value)) for name, value in candidate.config.items())


@lru_cache(maxsize=1024)
def _resources(text: str | None) -> Mapping[str, int]:
    """The resources in a trial's details; {} where they are not there or not numbers: a database may hold anything."""
    found = json.loads(text) if text else None
    if not isinstance(found, dict):
        return {}
    return {name: found[name] for name in _RESOURCES if type(found.get(name)) is int}


@lru_cache(maxsize=1024)
def _first_line(message: str) -> str:
    text = " ".join(message.split()) or "(no message)"
    return text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 1] + "…"
