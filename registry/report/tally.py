"""The tally of a search: its best times, the trials at which they improved, and the outcomes of its trials."""

from __future__ import annotations

import json
import math
from bisect import insort
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any

from tuning_db import CandidateKey
from tuning_db.searches import TrialFigures

GIVEN_UP = "ok, given up"
"""The outcome of trials of status ``ok`` that were too slow to be timed completely."""

FASTEST = 5
"""Number of configurations of an implementation that are kept of a search."""

_LONGEST_MESSAGE = 240
_RESOURCES = ("registers", "spill_bytes", "shared_bytes", "threads")


@dataclass(frozen=True)
class Best:
    """One of an implementation's fastest trials: its time, its configuration and what its kernel takes.

    ``resources``: registers and spill_bytes a thread, shared_bytes and threads a block; empty where the trial does not
    tell.
    """

    us: float
    config: Mapping[str, Any]
    resources: Mapping[str, int] = field(default_factory=dict)


@dataclass
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


def tally(attempts: Iterable[TrialFigures]) -> Tally:
    """The tally of trials, oldest first."""
    number, fastest_us = 0, math.inf
    kept: dict[str, _FastestTrials] = {}
    steps: list[tuple[int, float]] = []
    outcomes: Counter[tuple[str, str]] = Counter()
    failures: Counter[tuple[str, str, str]] = Counter()
    settings: dict[str, dict[ParameterValue, ValueFigures]] = {}
    sources: set[tuple[str, str]] = set()
    for number, (candidate, status, censored, us, message, resources) in enumerate(attempts, 1):
        name = candidate.implementation
        sources.add((name, candidate.fingerprint))
        outcomes[name, status if status != "ok" or not censored else GIVEN_UP] += 1
        timed = status == "ok" and us is not None and not censored and 0 < us < math.inf
        _count(settings.setdefault(name, {}), candidate, status == "ok", us if timed and us else math.inf)
        if status != "ok":
            failures[name, status, _first_line(message)] += 1
        elif timed and us is not None:
            kept.setdefault(name, _FastestTrials()).offer(us, candidate, resources)
            if us < fastest_us:
                fastest_us = us
                steps.append((number, us))
    fastest = {name: one.trials for name, one in kept.items()}
    return Tally(number, fastest, steps, outcomes, failures, settings, sources)


class _FastestTrials:
    """The fastest trials of an implementation so far, one for each candidate."""

    def __init__(self) -> None:
        self.trials: list[Best] = []

    def offer(self, us: float, candidate: CandidateKey, resources: str | None) -> None:
        if len(self.trials) == FASTEST and us >= self.trials[-1].us:
            return
        same = next((one for one in self.trials if one.config == candidate.config), None)
        if same is not None:
            if same.us <= us:
                return
            self.trials.remove(same)
        insort(self.trials, Best(us, candidate.config, _resources(resources)), key=attrgetter("us"))
        del self.trials[FASTEST:]


def _count(settings: dict[ParameterValue, ValueFigures], candidate: CandidateKey, right: bool, us: float) -> None:
    for parameter, value in candidate.config.items():
        # a value of an import may be a list, which is no key
        place = parameter, value if value.__hash__ else repr(value)
        tried = settings.get(place)
        if tried is None:
            tried = settings[place] = ValueFigures()
        tried.trials += 1
        tried.right += right
        tried.us = min(tried.us, us)


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
