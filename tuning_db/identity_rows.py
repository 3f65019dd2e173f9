"""Row numbers of identities: each identity is stored once, in the row of its key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from .identities import CandidateKey, Environment, ProblemKey, Protocol
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
from .records import Decision, Final, PlainTrial, Trial

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite

CHUNK = 500
"""Keys in one IN list: far below every database's limit on parameters."""

Ids = dict[str, int]

Known = dict[tuple[str, str], int]
"""(table, key) of an identity -> its row number, which never changes once it is committed."""


MEASURED_IDS = ("problem_id", "candidate_id", "hardware_id", "software_id", "protocol_id")
"""Columns of what a trial or a decision refers to."""

_MOST_HELD = 100_000
"""Identities by whose objects row numbers are known."""

_Identity = TypeVar("_Identity", Environment, ProblemKey, Protocol)


class Identities:
    """Row numbers of the identities of some records; identities that are not stored yet are added.

    All identities of a transaction are looked up at once and added in the order of their keys: two writers on a server
    that add identities in different orders would wait for each other. Those in ``known`` are not looked up.
    Records share their identities, so that these are told apart as objects first: a key takes longer to compare.
    """

    def __init__(
        self,
        session: Session,
        trials: Sequence[Trial | PlainTrial],
        decisions: Sequence[tuple[Decision, Sequence[Final]]] = (),
        environments: Iterable[Environment] = (),
        known: Mapping[tuple[str, str], int] | None = None,
    ) -> None:
        self._session, self._known = session, known or {}
        self.found: Known = {}
        self._held: list[object] = []
        self._environments: dict[int, tuple[int, int]] = {}
        self._protocols: dict[int, int] = {}
        self._problems: dict[int, int] = {}
        self._candidates: dict[tuple[str, int], int] = {}
        self.add(trials, decisions, environments)

    def add(
        self,
        trials: Sequence[Trial | PlainTrial],
        decisions: Sequence[tuple[Decision, Sequence[Final]]] = (),
        environments: Iterable[Environment] = (),
    ) -> None:
        """Looks up, or adds, what more records of the transaction refer to."""
        if len(self._held) > _MOST_HELD:
            for places in (self._held, self._environments, self._protocols, self._problems, self._candidates):
                places.clear()
        records: list[Trial | PlainTrial | Decision] = [*trials, *(decision for decision, _ in decisions)]
        self._add_environments(_new([*(record.environment for record in records), *environments], self._environments))
        protocols = _new((record.protocol for record in records), self._protocols)
        ids = self._ids(ProtocolRow, {p.key: {"regime": p.regime, "details": p.details} for p in protocols.values()})
        self._protocols |= {place: ids[one.key] for place, one in protocols.items()}
        problems = _new((record.problem for record in records), self._problems)
        ids = self._ids(ProblemRow, {one.key: _problem_values(one) for one in problems.values()})
        self._problems |= {place: ids[one.key] for place, one in problems.items()}
        named = [(record.problem.op, record.candidate) for record in records]
        for decision, finals in decisions:
            entrants = {id(final.candidate): final.candidate for final in finals}
            named += [(decision.problem.op, entrant) for entrant in entrants.values() if entrant]
        candidates = {
            place: candidate for op, candidate in named if (place := (op, id(candidate))) not in self._candidates
        }
        self._add_candidates(candidates)
        # the number of an object is its own as long as it lives
        self._held += [*protocols.values(), *problems.values(), *candidates.values()]

    def _add_environments(self, environments: Mapping[int, Environment]) -> None:
        hardware = {one.hardware_key: {"identity": one.hardware} for one in environments.values()}
        software = {one.software_key: {"identity": one.software} for one in environments.values()}
        machines, versions = self._ids(HardwareRow, hardware), self._ids(SoftwareRow, software)
        self._environments |= {
            place: (machines[one.hardware_key], versions[one.software_key]) for place, one in environments.items()
        }
        self._held += environments.values()

    def _add_candidates(self, candidates: Mapping[tuple[str, int], CandidateKey]) -> None:
        named = [(op, candidate) for (op, _), candidate in candidates.items()]
        implementations = self._ids(
            ImplementationRow, {_implementation_key(*pair): _implementation_values(*pair) for pair in named}
        )
        values = {
            candidate_key(*pair): {
                "implementation_id": implementations[_implementation_key(*pair)],
                "config": pair[1].config,
            }
            for pair in named
        }
        ids = self._ids(CandidateRow, values)
        self._candidates |= {place: ids[candidate_key(place[0], one)] for place, one in candidates.items()}

    def environment(self, environment: Environment) -> dict[str, int]:
        """The row numbers of an environment's hardware and software, by column."""
        return dict(zip(("hardware_id", "software_id"), self._environments[id(environment)], strict=True))

    def measured(self, record: Trial | PlainTrial | Decision) -> tuple[int, int, int, int, int]:
        """The row numbers of a trial's or decision's identities, in the order of ``MEASURED_IDS``."""
        problem = record.problem
        return (
            self._problems[id(problem)],
            self._candidates[problem.op, id(record.candidate)],
            *self._environments[id(record.environment)],
            self._protocols[id(record.protocol)],
        )

    def candidate(self, op: str, candidate: CandidateKey) -> int:
        """The row number of a candidate of ``op``."""
        return self._candidates[op, id(candidate)]

    def _ids(self, row: type[Keyed], wanted: Mapping[str, Mapping[str, Any]]) -> Ids:
        # a problem is not known by its key alone: an op may have changed which of its dimensions are static
        places = {key: (row.__tablename__, key + values.get("static_key", "")) for key, values in wanted.items()}
        known = {key: self._known.get(place, self.found.get(place)) for key, place in places.items()}
        ids = {key: number for key, number in known.items() if number is not None}
        new = {key: values for key, values in wanted.items() if key not in ids}
        ids |= _ids(self._session, row, new)
        if row is ProblemRow:
            _renew_static_keys(self._session, new)
        self.found |= {places[key]: number for key, number in ids.items()}
        return ids


def insert_new(session: Session, row: type[StoredRow]) -> sqlite.Insert | postgresql.Insert:
    """An INSERT that skips rows whose key is stored already."""
    if session.get_bind().dialect.name == "sqlite":
        from sqlalchemy.dialects import sqlite

        return sqlite.insert(row).on_conflict_do_nothing()
    from sqlalchemy.dialects import postgresql  # a tenth of the time that a short command takes to start

    return postgresql.insert(row).on_conflict_do_nothing()


def chunks(keys: Iterable[str]) -> Iterable[list[str]]:
    """``keys`` in sorted lists of at most CHUNK."""
    ordered = sorted(keys)
    return (ordered[start : start + CHUNK] for start in range(0, len(ordered), CHUNK))


def numbers_of(
    session: Session, key: InstrumentedAttribute[str], number: InstrumentedAttribute[int], keys: Iterable[str]
) -> Ids:
    """The row numbers of those of ``keys`` that are stored in the column ``key``, by key."""
    found: Ids = {}
    for chunk in chunks(keys):
        found |= {name: place for name, place in session.execute(select(key, number).where(key.in_(chunk)))}  # noqa: C416
    return found


def add_new(session: Session, row: type[StoredRow], values: list[dict[str, Any]]) -> None:
    """Adds the rows whose key is not stored yet."""
    if values:  # the connection's insert: the session's would look at each row as an object first
        session.connection().execute(insert_new(session, row), values)


def add_rows(session: Session, row: type[StoredRow], names: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    """Adds the rows, values of the columns ``names``, whose key is not stored yet; returns how many these were.

    Values go to the driver as they are, JSON as text: what SQLAlchemy does with each takes longer than the insert.
    """
    connection = session.connection()
    made = insert_new(session, row).inline().compile(dialect=connection.dialect, column_keys=list(names))
    values: list[Any]
    if made.positional:
        order = [names.index(name) for name in made.positiontup or ()]
        values = list(rows if order == sorted(order) else map(itemgetter(*order), rows))
    else:
        values = [dict(zip(names, one, strict=True)) for one in rows]
    return connection.exec_driver_sql(str(made), values).rowcount if values else 0


def _ids(session: Session, row: type[Keyed], wanted: Mapping[str, Mapping[str, Any]]) -> Ids:
    found = numbers_of(session, row.key, row.id, wanted)
    missing = sorted(wanted.keys() - found.keys())
    add_new(session, row, [{"key": key, **wanted[key]} for key in missing])
    return found | numbers_of(session, row.key, row.id, missing)


def _renew_static_keys(session: Session, wanted: Mapping[str, Mapping[str, Any]]) -> None:
    for chunk in chunks(wanted):
        stored = session.execute(select(ProblemRow.key, ProblemRow.static_key).where(ProblemRow.key.in_(chunk)))
        for key in sorted(key for key, static_key in stored if static_key != wanted[key]["static_key"]):
            changed = update(ProblemRow).where(ProblemRow.key == key).values(static_key=wanted[key]["static_key"])
            session.execute(changed, execution_options={"synchronize_session": False})


def _new(identities: Iterable[_Identity], known: Mapping[int, object]) -> dict[int, _Identity]:
    """By their numbers the objects whose numbers are not among those ``known``."""
    return {id(identity): identity for identity in identities if id(identity) not in known}


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
