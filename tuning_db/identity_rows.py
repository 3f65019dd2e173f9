"""Row numbers of identities: each identity is stored once, in the row of its key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar

from sqlalchemy import select, update
from sqlalchemy.orm import Session

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
)
from .records import Decision, Final, PlainTrial, Trial
from .rows import Ids, add_new, chunks, numbers_of

KnownIds = dict[tuple[str, str], int]
"""(table, key) of an identity -> its row number, which never changes once it is committed."""


MEASURED_IDS = ("problem_id", "candidate_id", "hardware_id", "software_id", "protocol_id")
"""Columns of a trial or a decision that refer to identities."""

_MOST_HELD = 100_000
"""The most identity objects whose row numbers are remembered."""

_Identity = TypeVar("_Identity")

_identities = attrgetter("problem", "candidate", "environment", "protocol")
_op = attrgetter("op")
_candidate = attrgetter("candidate")


class Identities:
    """Row numbers of the identities of some records; identities that are not stored yet are added.

    All identities of a transaction are looked up at once and added in the order of their keys: two writers on a server
    that add identities in different orders would wait for each other. Those in ``known`` are not looked up. Records
    share identity objects, which are therefore compared as objects first: a key takes longer to compare.
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
        self.found: KnownIds = {}
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
        """Looks up or adds the identities that more records of the transaction refer to."""
        if len(self._held) > _MOST_HELD:
            for places in (self._held, self._environments, self._protocols, self._problems, self._candidates):
                places.clear()
        records = [*map(_identities, trials), *(_identities(decision) for decision, _ in decisions)]
        problems, candidates, measured_under, protocols = zip(*records, strict=True) if records else ((), (), (), ())
        self._add_environments(_new((*measured_under, *environments), self._environments))
        new_protocols = _new(protocols, self._protocols)
        ids = self._ids(ProtocolRow, {one.key: _protocol_values(one) for one in new_protocols.values()})
        self._protocols |= {place: ids[one.key] for place, one in new_protocols.items()}
        new_problems = _new(problems, self._problems)
        ids = self._ids(ProblemRow, {one.key: _problem_values(one) for one in new_problems.values()})
        self._problems |= {place: ids[one.key] for place, one in new_problems.items()}
        named = dict(zip(zip(map(_op, problems), map(id, candidates), strict=True), candidates, strict=True))
        for decision, finals in decisions:
            op, entrants = decision.problem.op, _by_number(map(_candidate, finals))
            named |= {(op, place): entrant for place, entrant in entrants.items() if entrant is not None}
        new_candidates = {place: candidate for place, candidate in named.items() if place not in self._candidates}
        self._add_candidates(new_candidates)
        # no other object has an object's number as long as it lives
        self._held += [*new_protocols.values(), *new_problems.values(), *new_candidates.values()]

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

    def measured_columns(self, trials: Iterable[PlainTrial]) -> Iterator[Iterable[int]]:
        """The row numbers of trials' identities, a column for each of ``MEASURED_IDS``."""
        problems, candidates, environments, protocols = zip(*map(_identities, trials), strict=True)
        yield map(self._problems.__getitem__, map(id, problems))
        yield map(self._candidates.__getitem__, zip(map(_op, problems), map(id, candidates), strict=True))
        yield from zip(*map(self._environments.__getitem__, map(id, environments)), strict=True)
        yield map(self._protocols.__getitem__, map(id, protocols))

    def candidates(self, op: str, finals: Sequence[Final]) -> list[int | None]:
        """The row number of each final's candidate, which is one of ``op``; None for the floor."""
        entrants = list(map(_candidate, finals))
        known = {place: one and self._candidates[op, place] for place, one in _by_number(entrants).items()}
        return list(map(known.__getitem__, map(id, entrants)))

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


def _by_number(identities: Iterable[_Identity]) -> dict[int, _Identity]:
    """Objects by their numbers."""
    listed = list(identities)
    return dict(zip(map(id, listed), listed, strict=True))


def _new(identities: Iterable[_Identity], known: Mapping[int, object]) -> dict[int, _Identity]:
    """The identities whose numbers are not in ``known``, by number."""
    return {place: identity for place, identity in _by_number(identities).items() if place not in known}


def _protocol_values(protocol: Protocol) -> dict[str, Any]:
    return {"regime": protocol.regime, "details": protocol.details}


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
