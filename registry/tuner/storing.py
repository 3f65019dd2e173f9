"""A run's reads and writes of the store, from and to the tuner's own objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tuning_db import (
    CandidateKey,
    Decision,
    Environment,
    Final,
    MovedDatabaseError,
    ProblemKey,
    Store,
    Trial,
    TuningDBError,
)
from tuning_db import Protocol as StoredProtocol
from tuning_db.considered import IMPLEMENTATIONS
from tuning_db.snapshot import LEARNT

from ..contract import Op
from ..device import Device
from ..dispatch.plans.plan import Candidate
from .jobs import Outcome
from .measure.protocol import TimingProtocol
from .patience import PATIENCE_S, Patience
from .planning.distance import Distances
from .planning.problems import ProblemPlan
from .stored_winners import StoredWinners, artifact_hash_of, problem_key, same_kernels
from .trial_batches import TrialBatches

LASTING = frozenset({"ok", "wrong_result", "nondeterministic", "compile_error", "out_of_resources", "unsupported"})
"""Statuses that a second trial would give again. A timeout, a crash or a full memory may have been bad luck."""

_LATEST = 32
"""How many of the latest runs are read to find the newest one on this hardware, which has the rules learnt before."""

_NEAREST = 64
"""The nearest problems whose winners are offered as seeds: reading all of a thousand problems takes an hour."""

_LATE_ROWS = 4096
"""On a server at most this many rows become visible after a row with a greater number: runs write up to 64 together."""

_HEAR_FILE_S, _HEAR_SERVER_S, _HEAR_IN_JOB_S = 0.1, 2.0, 30.0
"""Seconds between two looks for trials of other runs: a server has many clients, and a job's problems are its own."""


@dataclass
class _Seen:
    """The rows of one problem's trials that a run has read, from ``began`` to ``newest``, and the trials' uids."""

    began: int
    newest: int
    uids: set[str] = field(default_factory=set)


class RunStore(StoredWinners):
    """One run's view of the store: reads known trials and winners, writes new ones. ``run`` is the run's uid.

    ``plans`` are the run's, whose implementations are stored with it.
    """

    def __init__(
        self,
        store: Store,
        device: Device,
        protocol: TimingProtocol,
        details: Mapping[str, Any],
        tell: Callable[[str], None] = lambda _: None,
        patience_s: float = PATIENCE_S,
        plans: Sequence[ProblemPlan] = (),
    ) -> None:
        environment = Environment(device.hardware(), device.software())
        super().__init__(store, environment, protocol.regime, Patience(tell, patience_s))
        self._store = store
        self._protocol = StoredProtocol(protocol.regime, protocol.details)
        self._batches = TrialBatches(self._write, together=store.on_server)
        self.hear_every_s = _hear_every_s(store)
        """Seconds between two looks for what other runs have stored."""
        told = {**details, IMPLEMENTATIONS: self.fingerprints(plans)} if plans else details
        self.run = self._patiently(lambda: store.start_run(self.environment, told))
        self._began, _ = self._patiently(store.newest_trial)
        self._newest = self._began
        self._seen: dict[ProblemKey, _Seen] = {}
        self._winners: dict[tuple[str, int, str], tuple[list[Decision], Distances]] = {}

    def end(self, details: Mapping[str, Any]) -> None:
        self._batches.write()
        self._patiently(lambda: self._store.end_run(self.run, details))

    def trial(self, plan: ProblemPlan, candidate: Candidate, outcome: Outcome) -> Trial:
        """Store one trial and return it, or that of another run which tried the candidate since this run began.

        On a server it is stored with others, within a second if ``write_due`` is called, and returned before.
        """
        trial = self._trial(plan, candidate, outcome)
        stored = self._batches.add(trial)
        self._seen_of(trial.problem).uids.add(stored.uid)
        return stored

    def write_due(self) -> None:
        """Store the trials that have waited for others for long enough; to be called often."""
        self._batches.write_due()

    def _write(self, trials: Sequence[Trial]) -> list[Trial]:
        with _told(f"{len(trials)} measured trial{'s' * (len(trials) != 1)}"):
            stored = self._patiently(
                lambda: self._store.add_new_trials(self.run, trials, since=self._began, statuses=LASTING)
            )
        for trial in stored:
            self._seen_of(trial.problem).uids.add(trial.uid)
        return stored

    def refuted(self, plan: ProblemPlan, candidate: Candidate, outcome: Outcome) -> Trial:
        """Store that a candidate whose trial was right is wrong after all; from now on this trial counts."""
        trial = self._trial(plan, candidate, outcome)
        self._batches.write()
        with _told("1 trial that refutes another"):
            self._patiently(lambda: self._store.add_trials(self.run, [trial]))
        self._seen_of(trial.problem).uids.add(trial.uid)
        return trial

    def _trial(self, plan: ProblemPlan, candidate: Candidate, outcome: Outcome) -> Trial:
        return Trial(
            problem=problem_key(plan.op, plan.problem),
            candidate=self._key(candidate),
            environment=self.environment,
            protocol=self._protocol,
            artifact_hash=artifact_hash_of(plan, candidate),
            **{name: value for name, value in vars(outcome).items() if name != "seconds"},
        )

    def known_trials(self, plan: ProblemPlan) -> list[tuple[Candidate, Trial]]:
        """Stored trials of this problem, environment and protocol whose candidates have unchanged sources.

        Oldest first, so that the newest trial of a candidate counts. Trials with a status that may have been the
        machine's fault are left out: their candidates are tried again.
        """
        self._seen[problem_key(plan.op, plan.problem)] = _Seen(0, 0)
        return self.news(plan)

    def has_news(self) -> bool:
        """Whether another run has stored a trial of any problem since the last call; reads an index only."""
        self._newest, others = self._patiently(lambda: self._store.newest_trial(self._newest, self.run))
        return others

    def news(self, plan: ProblemPlan) -> list[tuple[Candidate, Trial]]:
        """Trials as in :meth:`known_trials`, but only those of other runs and not read before.

        The first call for a problem returns the trials stored since this run began.
        """
        problem = problem_key(plan.op, plan.problem)
        seen = self._seen_of(problem)
        since = max(seen.began, seen.newest - _LATE_ROWS)
        seen.newest, found = self._patiently(
            lambda: self._store.trials_since(since, problem, self.environment, self._protocol)
        )
        lasting = [trial for trial in found if trial.uid not in seen.uids and trial.status in LASTING]
        seen.uids.update(trial.uid for trial in found)
        pairs = ((self.candidate(plan.choices, trial.candidate), trial) for trial in lasting)
        return [(one, trial) for one, trial in pairs if one is not None and same_kernels(plan, one, trial)]

    def _seen_of(self, problem: ProblemKey) -> _Seen:
        return self._seen.setdefault(problem, _Seen(self._began, self._began))

    def neighbours(self, plan: ProblemPlan) -> list[tuple[Mapping[str, Any], Candidate]]:
        """(dims, winner) of the nearest stored problems with this problem's static dimensions; configs invalid here are
        left out.

        A winner whose source has changed since is still a good seed. Winners are read again after a ``publish``.
        """
        key = problem_key(plan.op, plan.problem)
        place = (plan.op.name, plan.op.version, key.static_key)
        if place not in self._winners:
            found = self._winners_like(*place)
            self._winners[place] = found, Distances(plan.op, [decision.problem.dims for decision in found])
        decisions, distances = self._winners[place]
        near = [decisions[number] for number in distances.nearest(plan.problem.dims, _NEAREST)]
        pairs = (
            (decision.problem.dims, self.candidate(plan.choices, decision.candidate, same_source=False))
            for decision in near
        )
        return [(dims, candidate) for dims, candidate in pairs if candidate is not None]

    def _winners_like(self, op: str, version: int, static_key: str) -> list[Decision]:
        hardware, regime = self.environment.hardware, self._protocol.regime
        return self._patiently(
            lambda: self._store.winners(
                op=op, op_version=version, static_key=static_key, hardware=hardware, regime=regime
            )
        )

    def winners_of(self, op: Op) -> list[Decision]:
        """The winners of all problems of an op on this hardware, newest first."""
        return self._store.winners(op=op.name, hardware=self.environment.hardware, regime=self._protocol.regime)

    def learnt(self) -> dict[str, Any]:
        """The rules for defaults by op that the latest run on this hardware has learnt, see ``decide.learning``."""
        hardware = dict(self.environment.hardware)
        runs = (run for run in self._store.runs(_LATEST) if dict(run.environment.hardware) == hardware)
        return next((dict(run.summary[LEARNT]) for run in runs if run.summary.get(LEARNT)), {})

    def publish(self, decision: Decision, finals: Sequence[Final]) -> bool:
        """Store a decision; False when another process has published since ``decision.previous`` was read."""
        self._winners.clear()
        with _told(f"a decision of {decision.problem.op} with its finals"):
            return self._patiently(lambda: self._store.publish(self.run, decision, finals))

    def decision(
        self,
        plan: ProblemPlan,
        candidate: Candidate,
        trial_uid: str | None = None,
        artifact_hash: str | None = None,
        **fields: Any,
    ) -> Decision:
        """A decision for a candidate, which refers to its trial as that is stored.

        ``artifact_hash``: that of its kernels; None for that of its trial, or of today's where there is no trial.
        """
        self._batches.write()
        uid = self._batches.stored_uid(trial_uid) if trial_uid else None
        if artifact_hash is None:
            tried = self._patiently(lambda: self._store.trial(uid)) if uid else None
            artifact_hash = artifact_hash_of(plan, candidate) if tried is None else tried.artifact_hash
        return Decision(
            trial_uid=uid,
            problem=problem_key(plan.op, plan.problem),
            environment=self.environment,
            protocol=self._protocol,
            candidate=self._key(candidate),
            artifact_hash=artifact_hash,
            **fields,
        )

    def final(self, candidate: Candidate | None, **fields: Any) -> Final:
        """The record of one timed round of the finals; ``candidate`` is None for the copy that measures the floor."""
        return Final(candidate=None if candidate is None else self._key(candidate), **fields)

    def _key(self, candidate: Candidate) -> CandidateKey:
        return CandidateKey(
            candidate.implementation.name, self.fingerprint(candidate.implementation), dict(candidate.config)
        )


@contextmanager
def _told(lost: str) -> Iterator[None]:
    """Context that writes; a fault of the database says that ``lost`` was measured and is not stored."""
    try:
        yield
    except TuningDBError as fault:
        if isinstance(fault, MovedDatabaseError) and fault.stored:  # in the copy that it names
            raise
        raise type(fault)(f"{fault.message}; {lost} could not be stored", hint=fault.hint) from fault


def _hear_every_s(store: Store) -> float:
    if store.fenced:
        return _HEAR_IN_JOB_S
    return _HEAR_SERVER_S if store.on_server else _HEAR_FILE_S
