"""Row numbers of identities: each identity is stored once, in the row of its key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from .identities import CandidateKey, Environment, ProblemKey
from .keys import digest
from .models import (
    CandidateRow,
    HardwareRow,
    ImplementationRow,
    Keyed,
    ProblemRow,
    ProtocolRow,
    SoftwareRow,
    StoredRow,
)
from .records import Decision, Final, Trial

CHUNK = 500
"""Keys in one IN list: far below every database's limit on parameters."""

Ids = dict[str, int]

Known = dict[tuple[str, str], int]
"""(table, key) of an identity -> its row number, which never changes once it is committed."""


class Identities:
    """Row numbers of the identities of some records; identities that are not stored yet are added.

    All identities of a transaction are looked up at once and added in the order of their keys: two writers on a server
    that add identities in different orders would wait for each other. Those in ``known`` are not looked up.
    """

    def __init__(
        self,
        session: Session,
        trials: Sequence[Trial],
        decisions: Sequence[tuple[Decision, Sequence[Final]]] = (),
        environments: Iterable[Environment] = (),
        known: Mapping[tuple[str, str], int] | None = None,
    ) -> None:
        records: list[Trial | Decision] = [*trials, *(decision for decision, _ in decisions)]
        finals = [(decision.problem.op, final.candidate) for decision, finals in decisions for final in finals]
        candidates = {(record.problem.op, record.candidate) for record in records}
        candidates |= {(op, candidate) for op, candidate in finals if candidate is not None}
        environments = {*(record.environment for record in records), *environments}
        protocols = {record.protocol for record in records}
        self._session, self._known = session, known or {}
        self.found: Known = {}
        self._hardware = self._ids(HardwareRow, {e.hardware_key: {"identity": e.hardware} for e in environments})
        self._software = self._ids(SoftwareRow, {e.software_key: {"identity": e.software} for e in environments})
        self._protocols = self._ids(ProtocolRow, {p.key: {"regime": p.regime, "details": p.details} for p in protocols})
        self._problems = self._ids(
            ProblemRow, {record.problem.key: _problem_values(record.problem) for record in records}
        )
        implementations = {_implementation_key(*pair): _implementation_values(*pair) for pair in candidates}
        self._implementations = self._ids(ImplementationRow, implementations)
        self._candidates = self._ids(CandidateRow, {candidate_key(*p): self._candidate(*p) for p in candidates})

    def environment(self, environment: Environment) -> dict[str, int]:
        """The row numbers of an environment's hardware and software, by column."""
        return {
            "hardware_id": self._hardware[environment.hardware_key],
            "software_id": self._software[environment.software_key],
        }

    def measured(self, record: Trial | Decision) -> dict[str, int]:
        """The row numbers of all identities of a trial or decision, by column."""
        return {
            "problem_id": self._problems[record.problem.key],
            "candidate_id": self.candidate(record.problem.op, record.candidate),
            "protocol_id": self._protocols[record.protocol.key],
            **self.environment(record.environment),
        }

    def candidate(self, op: str, candidate: CandidateKey) -> int:
        """The row number of a candidate of ``op``."""
        return self._candidates[candidate_key(op, candidate)]

    def _ids(self, row: type[Keyed], wanted: Mapping[str, Mapping[str, Any]]) -> Ids:
        # a problem is not known by its key alone: an op may have changed which of its dimensions are static
        places = {key: (row.__tablename__, key + values.get("static_key", "")) for key, values in wanted.items()}
        ids = {key: self._known[place] for key, place in places.items() if place in self._known}
        new = {key: values for key, values in wanted.items() if key not in ids}
        ids |= _ids(self._session, row, new)
        if row is ProblemRow:
            _renew_static_keys(self._session, new)
        self.found |= {places[key]: number for key, number in ids.items()}
        return ids

    def _candidate(self, op: str, candidate: CandidateKey) -> dict[str, Any]:
        key = _implementation_key(op, candidate)
        return {"implementation_id": self._implementations[key], "config": candidate.config}


def insert_new(session: Session, row: type[StoredRow]) -> sqlite.Insert | postgresql.Insert:
    """An INSERT that skips rows whose key is stored already."""
    if session.get_bind().dialect.name == "sqlite":
        return sqlite.insert(row).on_conflict_do_nothing()
    return postgresql.insert(row).on_conflict_do_nothing()


def chunks(keys: Iterable[str]) -> Iterable[list[str]]:
    """``keys`` in sorted lists of at most CHUNK."""
    ordered = sorted(keys)
    return (ordered[start : start + CHUNK] for start in range(0, len(ordered), CHUNK))


def add_new(session: Session, row: type[StoredRow], values: list[dict[str, Any]]) -> None:
    """Adds the rows whose key is not stored yet."""
    if values:  # the connection's insert: the session's would look at each row as an object first
        session.connection().execute(insert_new(session, row), values)


def _ids(session: Session, row: type[Keyed], wanted: Mapping[str, Mapping[str, Any]]) -> Ids:
    found = _stored(session, row, wanted)
    missing = sorted(wanted.keys() - found.keys())
    add_new(session, row, [{"key": key, **wanted[key]} for key in missing])
    return found | _stored(session, row, missing)


def _renew_static_keys(session: Session, wanted: Mapping[str, Mapping[str, Any]]) -> None:
    for chunk in chunks(wanted):
        stored = session.execute(select(ProblemRow.key, ProblemRow.static_key).where(ProblemRow.key.in_(chunk)))
        for key in sorted(key for key, static_key in stored if static_key != wanted[key]["static_key"]):
            changed = update(ProblemRow).where(ProblemRow.key == key).values(static_key=wanted[key]["static_key"])
            session.execute(changed, execution_options={"synchronize_session": False})


def _stored(session: Session, row: type[Keyed], keys: Iterable[str]) -> Ids:
    found: Ids = {}
    for chunk in chunks(keys):
        found |= {each.key: each.id for each in session.execute(select(row.key, row.id).where(row.key.in_(chunk)))}
    return found


def _problem_values(problem: ProblemKey) -> dict[str, Any]:
    return {name: getattr(problem, name) for name in ("op", "op_version", "static_key", "dims")}


def _implementation_values(op: str, candidate: CandidateKey) -> dict[str, Any]:
    return {"op": op, "name": candidate.implementation, "fingerprint": candidate.fingerprint}


@lru_cache(maxsize=65_536)
def _implementation_key(op: str, candidate: CandidateKey) -> str:
    return digest(_implementation_values(op, candidate))


@lru_cache(maxsize=65_536)
def candidate_key(op: str, candidate: CandidateKey) -> str:
    """The key under which a candidate of ``op`` is stored."""
    return digest({"op": op, "candidate": candidate.key})
