"""Identities by the row numbers with which rows refer to them: read from the database, each made once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from .database.bad_rows import readable
from .identities import CandidateKey, Environment, ProblemKey, Protocol
from .models import CandidateRow, HardwareRow, ImplementationRow, ProblemRow, ProtocolRow, SoftwareRow

TOGETHER = 1000
"""Rows that are read together."""
_MOST_KNOWN = 100_000
_IN_LIST = 500

_PROBLEMS = select(ProblemRow.id, ProblemRow.op, ProblemRow.op_version, ProblemRow.dims, ProblemRow.static_key)
_CANDIDATES = select(CandidateRow.id, ImplementationRow.name, ImplementationRow.fingerprint, CandidateRow.config).join(
    ImplementationRow, CandidateRow.implementation_id == ImplementationRow.id
)
_HARDWARE = select(HardwareRow.id, HardwareRow.identity)
_SOFTWARE = select(SoftwareRow.id, SoftwareRow.identity)
_PROTOCOLS = select(ProtocolRow.id, ProtocolRow.regime, ProtocolRow.details)


class Referred:
    """Identities by row number, converted by ``made`` if that is given. Those that cannot be read are left out.

    ``made`` takes a ProblemKey, CandidateKey or Protocol, or the named values of a hardware or software.
    """

    def __init__(self, session: Session, made: Callable[[Any], Any] = lambda identity: identity) -> None:
        self._session = session
        self._made = made
        self._known: dict[Any, dict[int, Any]] = {}
        self._environments: dict[tuple[int, int], Environment] = {}

    def problems(self, numbers: Iterable[int]) -> Mapping[int, Any]:
        """Row number -> problem, for these row numbers and possibly others."""
        return self._all(ProblemRow.id, _PROBLEMS, numbers, _problem)

    def candidates(self, numbers: Iterable[int]) -> Mapping[int, Any]:
        """Row number -> candidate, for these row numbers and possibly others."""
        return self._all(CandidateRow.id, _CANDIDATES, numbers, CandidateKey)

    def hardware(self, numbers: Iterable[int]) -> Mapping[int, Any]:
        """Row number -> hardware, for these row numbers and possibly others."""
        return self._all(HardwareRow.id, _HARDWARE, numbers, lambda identity: Environment(identity, {}).hardware)

    def software(self, numbers: Iterable[int]) -> Mapping[int, Any]:
        """Row number -> software, for these row numbers and possibly others."""
        return self._all(SoftwareRow.id, _SOFTWARE, numbers, lambda identity: Environment({}, identity).software)

    def protocols(self, numbers: Iterable[int]) -> Mapping[int, Any]:
        """Row number -> protocol, for these row numbers and possibly others."""
        return self._all(ProtocolRow.id, _PROTOCOLS, numbers, Protocol)

    def environment(self, hardware: int, software: int) -> Environment:
        """The environment of a hardware and a software that were read before; only without ``made``."""
        place = hardware, software
        if place not in self._environments:
            known = self._known[HardwareRow.id][hardware], self._known[SoftwareRow.id][software]
            self._environments[place] = Environment(*known)
        return self._environments[place]

    def _all(
        self, column: Any, query: Select[Any], numbers: Iterable[int], identity: Callable[..., Any]
    ) -> Mapping[int, Any]:
        known = self._known.setdefault(column, {})
        wanted = {number for number in set(numbers) if isinstance(number, int)}  # SQLite holds anything in any column
        if wanted <= known.keys():
            return known
        if len(known) > _MOST_KNOWN:
            known.clear()
        missing = sorted(wanted - known.keys())
        for start in range(0, len(missing), _IN_LIST):
            rows = self._session.execute(query.where(column.in_(missing[start : start + _IN_LIST])))
            known |= readable(self._session, column.class_.__tablename__, rows, self._numbered(identity))
        return known

    def _numbered(self, identity: Callable[..., Any]) -> Callable[[Any], tuple[int, Any]]:
        def made(row: Any) -> tuple[int, Any]:
            number, *fields = row
            return number, self._made(identity(*fields))

        return made


def _problem(op: str, op_version: int, dims: Mapping[str, Any], static_key: str) -> ProblemKey:
    return ProblemKey(op, op_version, dims, tuple(json.loads(static_key)))
