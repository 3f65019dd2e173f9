"""From records to rows: identities are stored once, whatever is new is added, a winner is swapped or left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from .errors import InvalidRecordError
from .keys import digest
from .models import (
    CandidateRow,
    DecisionRow,
    FinalRow,
    HardwareRow,
    ImplementationRow,
    Keyed,
    ProblemRow,
    ProtocolRow,
    RunRow,
    SoftwareRow,
    Table,
    TrialRow,
    WinnerRow,
)
from .records import CandidateKey, Decision, Environment, Final, Interval, ProblemKey, Protocol, Run, Trial

CHUNK = 500
"""Keys in one IN list: far below every database's limit on parameters."""

Ids = dict[str, int]

Known = dict[tuple[str, str], int]
"""Table and key of an identity -> its row number, which stays what it is once it is committed."""


class Identities:
    """Row numbers of identities, added where they are new.

    Everything of one transaction is asked for at once and added in the order of its keys: two writers on a server
    that add the same identities in different orders would wait for each other. What is ``known`` is not asked for.
    """

    def __init__(
        self,
        session: Session,
        *,
        environments: Iterable[Environment] = (),
        protocols: Iterable[Protocol] = (),
        problems: Iterable[ProblemKey] = (),
        candidates: Iterable[tuple[str, CandidateKey]] = (),
        known: Mapping[tuple[str, str], int] | None = None,
    ) -> None:
        environments, candidates = set(environments), set(candidates)
        self._session, self._known = session, known or {}
        self.found: Known = {}
        self._hardware = self._ids(HardwareRow, {e.hardware_key: {"identity": e.hardware} for e in environments})
        self._software = self._ids(SoftwareRow, {e.software_key: {"identity": e.software} for e in environments})
        self._protocols = self._ids(ProtocolRow, {p.key: {"regime": p.regime, "details": p.details} for p in protocols})
        self._problems = self._problem_ids({p.key: p for p in problems})
        implementations = {_implementation_key(*pair): _implementation_values(*pair) for pair in candidates}
        self._implementations = self._ids(ImplementationRow, implementations)
        self._candidates = self._ids(CandidateRow, {_candidate_key(*p): self._candidate(*p) for p in candidates})

    def environment(self, environment: Environment) -> dict[str, int]:
        """The two references that name an environment."""
        return {
            "hardware_id": self._hardware[environment.hardware_key],
            "software_id": self._software[environment.software_key],
        }

    def measured(self, record: Trial | Decision) -> dict[str, int]:
        """The references of a trial or decision."""
        return {
            "problem_id": self._problems[record.problem.key],
            "candidate_id": self.candidate(record.problem.op, record.candidate),
            "protocol_id": self._protocols[record.protocol.key],
            **self.environment(record.environment),
        }

    def candidate(self, op: str, candidate: CandidateKey) -> int:
        """The row number of a candidate of ``op``."""
        return self._candidates[_candidate_key(op, candidate)]

    def _ids(self, row: type[Keyed], wanted: Mapping[str, Mapping[str, Any]]) -> Ids:
        places = {key: (row.__tablename__, key) for key in wanted}
        ids = {key: self._known[place] for key, place in places.items() if place in self._known}
        ids |= _ids(self._session, row, {key: values for key, values in wanted.items() if key not in ids})
        self.found |= {places[key]: number for key, number in ids.items()}
        return ids

    def _problem_ids(self, wanted: Mapping[str, ProblemKey]) -> Ids:
        """An op may have changed which dimensions are static since a problem was stored: today's choice counts."""
        places = {key: (ProblemRow.__tablename__, f"{key} {problem.static_key}") for key, problem in wanted.items()}
        new = {key: problem for key, problem in wanted.items() if places[key] not in self._known}
        found = _ids(self._session, ProblemRow, {key: _problem_values(problem) for key, problem in new.items()})
        _renew_static_keys(self._session, new)
        ids = found | {key: self._known[place] for key, place in places.items() if key not in found}
        self.found |= {places[key]: number for key, number in ids.items()}
        return ids

    def _candidate(self, op: str, candidate: CandidateKey) -> dict[str, Any]:
        key = _implementation_key(op, candidate)
        return {"implementation_id": self._implementations[key], "config": candidate.config}


def identities_of(
    session: Session,
    trials: Sequence[Trial],
    decisions: Sequence[tuple[Decision, Sequence[Final]]] = (),
    environments: Iterable[Environment] = (),
    known: Mapping[tuple[str, str], int] | None = None,
) -> Identities:
    """The identities that all these records name."""
    records: list[Trial | Decision] = [*trials, *(decision for decision, _ in decisions)]
    finalists = {
        (decision.problem.op, final.candidate)
        for decision, finals in decisions
        for final in finals
        if final.candidate is not None
    }
    return Identities(
        session,
        environments={*(record.environment for record in records), *environments},
        protocols={record.protocol for record in records},
        problems={record.problem for record in records},
        candidates={*((record.problem.op, record.candidate) for record in records), *finalists},
        known=known,
    )


def add_runs(session: Session, identities: Identities, runs: Iterable[Run]) -> None:
    """Adds runs that are not there yet."""
    _add(session, RunRow, [_run_values(run, identities) for run in runs])


def add_trials(session: Session, identities: Identities, trials: Iterable[tuple[str, Trial]]) -> None:
    """Adds trials (each with the run it belongs to) whose uid is not there yet."""
    _add(session, TrialRow, [_trial_values(run, trial, identities) for run, trial in trials])


def add_decision(
    session: Session, identities: Identities, run: str, decision: Decision, finals: Sequence[Final]
) -> int:
    """Adds a decision with its finals and returns its row number."""
    values = _decision_values(run, decision, identities)
    number = session.execute(insert(DecisionRow).returning(DecisionRow.id), [values]).scalar_one()
    add_finals(session, identities, number, decision, finals)
    return number


def add_finals(
    session: Session, identities: Identities, number: int, decision: Decision, finals: Sequence[Final]
) -> None:
    """Adds the finals of the decision in row ``number``, which has none."""
    op = decision.problem.op
    if finals:
        session.execute(
            insert(FinalRow), [_final_values(number, i, op, final, identities) for i, final in enumerate(finals)]
        )


def swap_winner(session: Session, place: Mapping[str, Any], decision_id: int, previous: str | None) -> bool:
    """Makes ``decision_id`` the winner at ``place`` (the winner table's key) if ``previous`` still is, or none is."""
    if previous is not None:
        expected = select(DecisionRow.id).where(DecisionRow.uid == previous).scalar_subquery()
        swap = update(WinnerRow).filter_by(**place).where(WinnerRow.decision_id == expected)
        if _took(session, swap.values(decision_id=decision_id).returning(WinnerRow.decision_id)):
            return True
    first = insert_new(session, WinnerRow).values(**place, decision_id=decision_id)
    return _took(session, first.returning(WinnerRow.decision_id))


def require_run(session: Session, run: str) -> RunRow:
    """The row of a run; raises InvalidRecordError when there is none."""
    row = session.get(RunRow, run)
    if row is None:
        raise InvalidRecordError(f"there is no run {run!r} in this database", hint="start one with start_run()")
    return row


def insert_new(session: Session, row: type[Table]) -> sqlite.Insert | postgresql.Insert:
    """An INSERT that passes over rows whose key is taken."""
    if session.get_bind().dialect.name == "sqlite":
        return sqlite.insert(row).on_conflict_do_nothing()
    return postgresql.insert(row).on_conflict_do_nothing()


def chunks(keys: Iterable[str]) -> Iterable[list[str]]:
    """``keys`` in sorted lists of at most CHUNK."""
    ordered = sorted(keys)
    return (ordered[start : start + CHUNK] for start in range(0, len(ordered), CHUNK))


def _took(session: Session, statement: Any) -> bool:
    """Whether a statement with RETURNING touched a row (drivers do not agree on rowcount)."""
    # the Session must not try to apply it to objects it holds: it holds none
    return session.execute(statement, execution_options={"synchronize_session": False}).first() is not None


def _add(session: Session, row: type[Table], values: list[dict[str, Any]]) -> None:
    if values:
        session.execute(insert_new(session, row), values)


def _ids(session: Session, row: type[Keyed], wanted: Mapping[str, Mapping[str, Any]]) -> Ids:
    found = _known(session, row, wanted)
    missing = sorted(wanted.keys() - found.keys())
    _add(session, row, [{"key": key, **wanted[key]} for key in missing])
    return found | _known(session, row, missing)


def _renew_static_keys(session: Session, wanted: Mapping[str, ProblemKey]) -> None:
    for chunk in chunks(wanted):
        stored = session.execute(select(ProblemRow.key, ProblemRow.static_key).where(ProblemRow.key.in_(chunk)))
        for key in sorted(key for key, static_key in stored if static_key != wanted[key].static_key):
            changed = update(ProblemRow).where(ProblemRow.key == key).values(static_key=wanted[key].static_key)
            session.execute(changed, execution_options={"synchronize_session": False})


def _known(session: Session, row: type[Keyed], keys: Iterable[str]) -> Ids:
    found: Ids = {}
    for chunk in chunks(keys):
        found |= {each.key: each.id for each in session.execute(select(row.key, row.id).where(row.key.in_(chunk)))}
    return found


def _problem_values(problem: ProblemKey) -> dict[str, Any]:
    return {
        "op": problem.op,
        "op_version": problem.op_version,
        "static_key": problem.static_key,
        "dims": problem.dims,
    }


def _implementation_values(op: str, candidate: CandidateKey) -> dict[str, Any]:
    return {"op": op, "name": candidate.implementation, "fingerprint": candidate.fingerprint}


def _implementation_key(op: str, candidate: CandidateKey) -> str:
    return digest(_implementation_values(op, candidate))


def _candidate_key(op: str, candidate: CandidateKey) -> str:
    return digest({"op": op, "candidate": candidate.key})


def _run_values(run: Run, identities: Identities) -> dict[str, Any]:
    return {
        "id": run.uid,
        **identities.environment(run.environment),
        "started": run.started,
        "ended": run.ended,
        "details": run.details,
        "summary": run.summary,
    }


def _trial_values(run: str, trial: Trial, identities: Identities) -> dict[str, Any]:
    return {
        "uid": trial.uid,
        "run_id": run,
        **identities.measured(trial),
        "status": trial.status,
        "message": trial.message,
        "median_us": trial.median_us,
        "samples": list(trial.samples),
        "censored": trial.censored,
        "stop_reason": trial.stop_reason,
        "artifact_hash": trial.artifact_hash,
        "details": trial.details,
        "created": trial.created,
    }


def _decision_values(run: str, decision: Decision, identities: Identities) -> dict[str, Any]:
    names = ("uid", "median_us", "floor_us", "ratio", "lo", "hi", "aa", "verdict", "trial_uid", "created")
    return {
        "run_id": run,
        "previous_uid": decision.previous,
        "baselines": decision.baselines,
        "ties": list(decision.ties),
        **_default_values(decision.default_ratio),
        **identities.measured(decision),
        **{name: getattr(decision, name) for name in names},
    }


def _default_values(ratio: Interval | None) -> dict[str, float | None]:
    """The columns of a decision's comparison with the default."""
    value, low, high = (None, None, None) if ratio is None else (ratio.value, ratio.low, ratio.high)
    return {"default_ratio": value, "default_lo": low, "default_hi": high}


def _final_values(decision_id: int, ordinal: int, op: str, final: Final, identities: Identities) -> dict[str, Any]:
    return {
        "decision_id": decision_id,
        "ordinal": ordinal,
        "candidate_id": None if final.candidate is None else identities.candidate(op, final.candidate),
        "role": final.role,
        "block": final.block,
        "round": final.round,
        "position": final.position,
        "us": final.us,
    }
