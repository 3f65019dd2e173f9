"""Outcomes of one problem's trials: which candidates are right, how fast they are, and which enter the finals."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...artifact import Artifact
from ...dispatch.plans.plan import Candidate
from ..jobs import Entrant
from ..limits import DEFAULT_SECONDS, PRE_FINALISTS
from ..planning.problems import ProblemPlan
from ..workers.source_texts import source_digest

_KINDS_IN_BLOCK, _MIXTURES_IN_TRIAL = 2, 2
"""Kinds of inputs that an entrant of a block is verified on, and those that a trial meets beside the op's own."""


@dataclass(frozen=True)
class Finding:
    """The outcome of a candidate's trial, of this run or another, stored under ``uid``."""

    candidate: Candidate
    status: str
    median_us: float | None
    censored: bool
    uid: str
    message: str = ""
    probed: bool = False
    """Whether the trial met all probes; a trial of another run does not count."""

    @property
    def right(self) -> bool:
        """Whether the candidate was verified and timed, perhaps not to the end."""
        return self.status == "ok" and self.median_us is not None


class Findings:
    """The outcomes of one problem's trials, by the key of the candidate; the latest outcome of a candidate counts.

    ``stored``: the winner that the database holds, if it still runs here. ``seconds``: the limit of the search on the
    device, and of measuring in the finals. ``seed``: the seed of everything random about this problem. ``statuses``
    counts outcomes; ``floor_us`` is the time of the copy floor, None until it is measured.
    """

    def __init__(
        self, plan: ProblemPlan, seed: int, stored: Candidate | None = None, seconds: float = DEFAULT_SECONDS
    ) -> None:
        self.plan = plan
        self.seconds = seconds
        self.seed = seed
        self.stored = stored
        self.floor_us: float | None = None
        self.statuses: Counter[str] = Counter()
        self._tried: dict[str, Finding] = {}
        self._artifacts: dict[str, tuple[Artifact, ...]] = {}
        self._probed: set[str] = set()
        self._loaded_s: list[float] = []
        self._verified_s: list[float] = []

    def took(self, steps: Mapping[str, float]) -> None:
        """Take in the seconds of a trial's steps on the device."""
        if "load" in steps:
            self._loaded_s.append(steps["load"])
            self._verified_s.append(steps.get("verify", 0.0))

    def setup_seconds(self, entrants: int, blocks: int) -> float:
        """About the seconds that so many blocks of finals take beside timing so many entrants; 0 before any trial.

        The first trial made the inputs and what they give in float64, which the fresh process of a block does once; of
        each entrant it takes as long as of a later trial. But a trial meets all kinds of inputs and two mixtures, a
        block the timed kind and one mixture; and entrants of a large problem are verified in the last block only.
        """
        part = _KINDS_IN_BLOCK / (len(self.plan.op.kinds) + _MIXTURES_IN_TRIAL)
        verified = 1 if self.plan.is_large else blocks
        return blocks * _together(self._loaded_s, entrants) + verified * part * _together(self._verified_s, entrants)

    def learn(self, told: Finding) -> None:
        """Take in the outcome of a trial."""
        self.statuses[told.status] += 1
        self._tried.pop(told.candidate.key, None)  # the latest stands last
        self._tried[told.candidate.key] = told
        if told.probed:
            self._probed.add(told.candidate.key)

    def believe(self, candidate: Candidate) -> None:
        """Note that the candidate has met all probes."""
        self._probed.add(candidate.key)

    def refute(self, told: Finding) -> None:
        """Take in that a candidate whose trial was right is wrong after all."""
        if self.is_right(told.candidate):
            self.statuses -= Counter({"ok": 1})
        self.learn(told)

    def remember(self, candidate: Candidate, artifacts: tuple[Artifact, ...]) -> None:
        """Keep the artifacts that a candidate runs from, for the finals."""
        self._artifacts[candidate.key] = artifacts

    def resources(self, candidate: Candidate) -> dict[str, int]:
        """What the compiler says that the candidate's kernels take, the most of each; {} where nothing is known."""
        found: dict[str, int] = {}
        for artifact in self._artifacts.get(candidate.key, ()):
            found |= {name: max(value, found.get(name, 0)) for name, value in artifact.resources.items()}
        return found

    def entrant(self, candidate: Candidate, role: str = "candidate") -> Entrant:
        """The candidate as an entrant of a worker's job, with its artifacts."""
        artifacts = self._artifacts.get(candidate.key, ())
        implementation = candidate.implementation
        return Entrant(implementation.name, dict(candidate.config), artifacts, role, source_digest(implementation))

    # one candidate

    def median_us(self, key: str) -> float | None:
        """The time that a trial measured for the candidate with this key, None where none did."""
        tried = self._tried.get(key)
        return tried.median_us if tried is not None and tried.right else None

    def knows(self, candidate: Candidate) -> bool:
        """Whether the outcome of a trial of the candidate is known, of this run or another."""
        return candidate.key in self._tried

    def is_probed(self, candidate: Candidate) -> bool:
        """Whether this run has met the candidate with all probes."""
        return candidate.key in self._probed

    def is_right(self, candidate: Candidate) -> bool:
        return self.uid(candidate) is not None

    def fault_of(self, candidate: Candidate) -> str:
        """The status of the candidate's last trial where that was not ``ok``; "" if it is right or was not tried."""
        tried = self._tried.get(candidate.key)
        return "" if tried is None or tried.right else tried.status

    def uid(self, candidate: Candidate) -> str | None:
        """The uid of the trial that verified the candidate."""
        tried = self._tried.get(candidate.key)
        return tried.uid if tried is not None and tried.right else None

    def has_measured(self, implementation: str) -> bool:
        """Whether some candidate of the implementation was timed."""
        return any(told.right and told.candidate.implementation.name == implementation for told in self._tried.values())

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
        return next((self.median_us(candidate.key) for candidate in self.ranked()), None)

    def ranked(self) -> list[Candidate]:
        """The right candidates that were not given up early, fastest first."""
        return self._by_time(censored=False)

    def default(self) -> Candidate | None:
        """The default that dispatch would run untuned, or the next one that is right."""
        return next((candidate for candidate in self.plan.defaults() if self.is_right(candidate)), None)

    def incumbent(self) -> Candidate | None:
        """The candidate to be beaten: the stored winner, else the default, else the fastest; None if none is right."""
        if self.stored is not None and self.is_right(self.stored):
            return self.stored
        return self.default() or next(iter(self.ranked()), None)

    @property
    def decides(self) -> bool:
        """Whether something is right, of several implementations not one alone was tried, and the default was.

        A search that was stopped earlier would make a winner of what was tried first, the op's baseline or what
        compiles in no time; calls would run it and not the default, which may be faster. A stored winner that is right
        stands for the default: calls run it already.
        """
        supported = {choice.implementation.name for choice in self.plan.supported}
        tried = {told.candidate.implementation.name for told in self._tried.values()}
        default = next(iter(self.plan.defaults()), None)
        met = default is None or self.knows(default) or (self.stored is not None and self.is_right(self.stored))
        return self.incumbent() is not None and (len(supported) == 1 or len(tried) > 1) and met

    def best_of_each(self) -> list[Candidate]:
        """The fastest right candidate of every implementation, one that was given up early where there is no other."""
        best: dict[str, Candidate] = {}
        for candidate in [*self.ranked(), *self._by_time(censored=True)]:
            best.setdefault(candidate.implementation.name, candidate)
        return list(best.values())

    def unbuilt(self) -> list[Candidate]:
        """Candidates that may enter the finals and have no artifacts: an earlier run measured them, not this one."""
        first = [self.incumbent(), self.default(), *self.ranked()[: PRE_FINALISTS + 1], *self.best_of_each()]
        entering = {candidate.key: candidate for candidate in first if candidate is not None}
        return [candidate for key, candidate in entering.items() if key not in self._artifacts]

    def _by_time(self, *, censored: bool) -> list[Candidate]:
        right = [tried for tried in self._tried.values() if tried.right and tried.censored == censored]
        return [tried.candidate for tried in sorted(right, key=lambda tried: tried.median_us or 0.0)]


def _together(seconds: Sequence[float], entrants: int) -> float:
    """The first of these seconds, and the median of the others for each entrant; 0 where there are none."""
    first, *later = seconds or [0.0]
    return first + (entrants * statistics.median(later) if later else 0.0)
