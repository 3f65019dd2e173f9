"""Stored winners as the tuner reads them: whether they are valid here, and which implementations they have not met."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tuning_db import CandidateKey, Decision, Environment, ProblemKey, Trial
from tuning_db.considered import IMPLEMENTATIONS, Considered, ImplementationKey
from tuning_db.queries import Queries

from ..contract import Op
from ..dispatch.plans.plan import Candidate
from ..implementation import Implementation
from ..problem import Problem
from .planning.problems import ImplementationPlan, ProblemPlan
from .planning.variants import artifact_hash

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class StandingWinner:
    """A stored winner that is valid here, and the implementations, by name, that its decision has not considered.

    ``unmet`` are of those that would be searched now; a problem with some is tuned again.
    """

    plan: ProblemPlan
    decision: Decision
    unmet: tuple[str, ...] = ()


class StoredWinners:
    """The winners of one environment and regime in a database. ``patiently`` asks again while the database is away."""

    def __init__(
        self,
        store: Queries,
        environment: Environment,
        regime: str,
        patiently: Callable[[Callable[[], Any]], Any] = lambda ask: ask(),
    ) -> None:
        self._queries = store
        self.environment = environment
        self._regime = regime
        self._ask = patiently
        self._fingerprints: dict[str, str] = {}
        self._searched: dict[str, Mapping[str, Any] | None] = {}

    def fingerprint(self, implementation: Implementation) -> str:
        """The implementation's fingerprint, hashed once."""
        key = f"{implementation.op} {implementation.name}"
        if key not in self._fingerprints:
            self._fingerprints[key] = implementation.fingerprint()
        return self._fingerprints[key]

    def fingerprints(self, plans: Iterable[ProblemPlan]) -> dict[str, dict[str, str]]:
        """The fingerprints of the implementations that the plans' searches may try, by op and name."""
        found: dict[str, dict[str, str]] = {}
        for plan in plans:
            of_op = found.setdefault(plan.op.name, {})
            of_op.update({one.name: self.fingerprint(one) for one in _searchable(plan) if one.name not in of_op})
        return found

    def winner(self, op: Op, problem: Problem) -> Decision | None:
        """The stored decision for this problem on this hardware and software."""
        key, hardware, software = problem_key(op, problem), self.environment.hardware, self.environment.software
        found = self._patiently(lambda: self._queries.winner(key, hardware, software, self._regime))
        if found is None or dict(found.environment.software) != dict(software):
            return None
        return found

    def valid(self, plan: ProblemPlan, decision: Decision | None) -> Candidate | None:
        """The decision's candidate if its source and kernels are unchanged and its config valid here; None otherwise.

        The candidate need not be one that this run searches.
        """
        if decision is None:
            return None
        candidate = self.candidate((*plan.choices, *plan.others), decision.candidate)
        return candidate if candidate is not None and same_kernels(plan, candidate, decision) else None

    def standing(self, plan: ProblemPlan) -> StandingWinner | None:
        """The problem's stored winner; None where there is none that is valid here."""
        decision = self.winner(plan.op, plan.problem)
        if decision is None or self.valid(plan, decision) is None:
            return None
        return StandingWinner(plan, decision, self._unmet(plan, decision))

    def _unmet(self, plan: ProblemPlan, decision: Decision) -> tuple[str, ...]:
        """The implementations that would be searched, and that the decision has not considered with today's source.

        An implementation was considered if it entered the finals, or was tried before; of a decision that was imported
        without its trials, if its run may have tried it. Trials of an implementation that the decision's run did not
        have are another's, which the decision did not know. What an earlier decision has considered counts, too, if its
        winner was raced.
        """
        unmet = {one.name: (one.name, self.fingerprint(one)) for one in _searchable(plan)}
        uid, seen = decision.uid, set[str]()
        while unmet and uid and uid not in seen:
            seen.add(uid)
            considered = self._considered(uid)
            if considered is None:
                break
            met = considered.entrants | self._tried(considered, plan.op.name)
            unmet = {name: key for name, key in unmet.items() if key not in met}
            uid = considered.previous
        return tuple(unmet)

    def _considered(self, uid: str) -> Considered | None:
        return self._patiently(lambda: self._queries.considered(uid))

    def _tried(self, considered: Considered, op: str) -> frozenset[ImplementationKey]:
        run = considered.run
        if run not in self._searched:
            stored = self._patiently(lambda: self._queries.run(run))
            told = None if stored is None else stored.details.get(IMPLEMENTATIONS)
            self._searched[run] = told if isinstance(told, Mapping) else None
        searched = self._searched[run]
        if searched is None:  # a run of an older version
            return considered.tried
        of_op = searched.get(op)
        known = frozenset(map(tuple, of_op.items())) if isinstance(of_op, Mapping) else frozenset()
        return considered.tried & known if considered.has_trials else known

    def candidate(
        self, choices: Sequence[ImplementationPlan], key: CandidateKey, *, same_source: bool = True
    ) -> Candidate | None:
        """A stored candidate as one of these choices; None where its config is not valid, or its source has changed."""
        for choice in choices:
            if choice.implementation.name != key.implementation:
                continue
            changed = self.fingerprint(choice.implementation) != key.fingerprint
            config = dict(key.config)
            if not choice.has(config) or (same_source and changed):
                return None
            return Candidate(choice.implementation, config)
        return None

    def _patiently(self, ask: Callable[[], _Answer]) -> _Answer:
        answer: _Answer = self._ask(ask)
        return answer


def raced_again(standing: Iterable[StandingWinner]) -> str:
    """A line about the winners that are raced again, and the implementations that they have not met; "" for none."""
    unmet = [one.unmet for one in standing if one.unmet]
    if not unmet:
        return ""
    counts = Counter(name for names in unmet for name in names)
    told = ", ".join(name if count == len(unmet) else f"{name} ({count})" for name, count in sorted(counts.items()))
    problems = "1 problem is" if len(unmet) == 1 else f"{len(unmet)} problems are"
    return f"{problems} raced again, because the stored winner has not met {told}"


def same_kernels(plan: ProblemPlan, candidate: Candidate, measured: Trial | Decision) -> bool:
    """Whether the candidate compiles the kernels that were measured; True for a record without their hash."""
    return measured.artifact_hash in {"", artifact_hash_of(plan, candidate)}


def artifact_hash_of(plan: ProblemPlan, candidate: Candidate) -> str:
    """The hash of the kernels that the candidate compiles for the plan's problem; "" for one that compiles nothing."""
    return artifact_hash(plan.op, candidate, plan.problem, plan.arguments, plan.device)


def problem_key(op: Op, problem: Problem) -> ProblemKey:
    """How the store names a problem."""
    return ProblemKey(op.name, op.version, dict(problem.dims), tuple(sorted(op.static)))


def _searchable(plan: ProblemPlan) -> list[Implementation]:
    return [choice.implementation for choice in plan.supported if choice.configs]
