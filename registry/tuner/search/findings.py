"""What trials have shown of one problem's candidates: who is right, how fast, and who enters the finals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property

from ...artifact import Artifact
from ...dispatch.plans.plan import Candidate
from ..jobs import Entrant
from ..limits import PRE_FINALISTS
from ..planning.problems import ProblemPlan


class Findings:
    """The outcomes of one problem's trials, by the key of the candidate; the latest outcome of a candidate counts.

    ``stored``: the winner that the database holds, if it still runs here. ``seed``: of everything random about this
    problem. ``statuses`` counts outcomes; ``floor_us`` is the time of the copy floor, None until it is measured.
    """

    def __init__(self, plan: ProblemPlan, seed: int, stored: Candidate | None = None) -> None:
        self.plan = plan
        self.seed = seed
        self.stored = stored
        self.floor_us: float | None = None
        self.statuses: Counter[str] = Counter()
        self._medians: dict[str, tuple[float, Candidate]] = {}
        self._censored: dict[str, tuple[float, Candidate]] = {}
        self._uids: dict[str, str] = {}
        self._known: set[str] = set()
        self._faults: dict[str, str] = {}
        self._measured: set[str] = set()
        self._artifacts: dict[str, tuple[Artifact, ...]] = {}

    def learn(self, candidate: Candidate, status: str, median_us: float | None, censored: bool, uid: str) -> None:
        """Take in the outcome of a trial, stored under ``uid``."""
        key = candidate.key
        self._known.add(key)
        self.statuses[status] += 1
        for found in (self._medians, self._censored):
            found.pop(key, None)
        self._uids.pop(key, None)
        self._faults.pop(key, None)
        if status != "ok" or median_us is None:
            self._faults[key] = status
            return
        self._measured.add(candidate.implementation.name)
        (self._censored if censored else self._medians)[key] = (median_us, candidate)
        self._uids[key] = uid

    def remember(self, candidate: Candidate, artifacts: tuple[Artifact, ...]) -> None:
        """Keep the artifacts that a candidate runs from, for the finals."""
        self._artifacts[candidate.key] = artifacts

    def entrant(self, candidate: Candidate, role: str = "candidate") -> Entrant:
        """The candidate as a worker is told of it."""
        artifacts = self._artifacts.get(candidate.key, ())
        return Entrant(candidate.implementation.name, dict(candidate.config), artifacts, role)

    # one candidate

    def median_us(self, key: str) -> float | None:
        """The time that a trial measured for the candidate with this key, None where none did."""
        entry = self._medians.get(key) or self._censored.get(key)
        return entry[0] if entry else None

    def knows(self, candidate: Candidate) -> bool:
        """Whether a trial of the candidate was told, of this run or another."""
        return candidate.key in self._known

    def is_right(self, candidate: Candidate) -> bool:
        """Whether the candidate was verified and timed."""
        return candidate.key in self._uids

    def fault_of(self, candidate: Candidate) -> str:
        """The status of the candidate's last trial where that was not ``ok``; "" if it is right or was not tried."""
        return self._faults.get(candidate.key, "")

    def uid(self, candidate: Candidate) -> str | None:
        """The uid of the trial that verified the candidate."""
        return self._uids.get(candidate.key)

    def has_measured(self, implementation: str) -> bool:
        """Whether some candidate of the implementation was timed."""
        return implementation in self._measured

    def must_try(self, candidate: Candidate) -> bool:
        """Whether the candidate is measured in any case: it is an implementation's default or the stored winner."""
        return candidate.key in self._defaults or (self.stored is not None and candidate.key == self.stored.key)

    @cached_property
    def _defaults(self) -> frozenset[str]:
        return frozenset(candidate.key for candidate in self.plan.defaults())

    # all of them

    @property
    def best_us(self) -> float | None:
        """The best median so far."""
        return min((median for median, _ in self._medians.values()), default=None)

    def ranked(self) -> list[Candidate]:
        """The right candidates that were not given up early, fastest first."""
        return [candidate for _, candidate in _by_time(self._medians)]

    def default(self) -> Candidate | None:
        """The default that dispatch would run untuned, or the next one that is right."""
        return next((candidate for candidate in self.plan.defaults() if self.is_right(candidate)), None)

    def incumbent(self) -> Candidate | None:
        """The candidate that must be beaten: the stored winner, else the default, else the fastest; None: none is."""
        if self.stored is not None and self.is_right(self.stored):
            return self.stored
        return self.default() or next(iter(self.ranked()), None)

    def best_of_each(self) -> list[Candidate]:
        """The fastest right candidate of every implementation, one that was given up early where there is no other."""
        best: dict[str, Candidate] = {}
        for _, candidate in [*_by_time(self._medians), *_by_time(self._censored)]:
            best.setdefault(candidate.implementation.name, candidate)
        return list(best.values())

    def unbuilt(self) -> list[Candidate]:
        """Candidates that may enter the finals and have no artifacts: an earlier run measured them, not this one."""
        first = [self.incumbent(), self.default(), *self.ranked()[: PRE_FINALISTS + 1], *self.best_of_each()]
        entering = {candidate.key: candidate for candidate in first if candidate is not None}
        return [candidate for key, candidate in entering.items() if key not in self._artifacts]


def _by_time(times: Mapping[str, tuple[float, Candidate]]) -> list[tuple[float, Candidate]]:
    return sorted(times.values(), key=lambda entry: entry[0])
