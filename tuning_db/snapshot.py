"""The winners of one op on one hardware, read at one moment and within seconds, for dispatch.

Each row is decoded when it is asked for, by itself: a bad row does not affect the others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .database.answering import AnsweredRow, Ask, QueryAnswers, answered
from .database.bad_rows import UNREADABLE
from .database.location import locate
from .database.packed_rows import ColumnKind, at, places_of_each, read_columns, unlike
from .errors import InvalidRecordError
from .identities import CandidateKey, Environment, ProblemKey
from .keys import canonical_json, digest, plain_mapping
from .records import Transfer, transfers_of
from .schema import STAMPS

LEARNT = "learnt_defaults"
"""The name in a run's summary under which the rules stand that the run has learnt, by op."""

UID, CANDIDATE, SOFTWARE, VERSION, STATIC, DIMS, CREATED, BASELINES, TRANSFERS, KERNELS = range(10)
"""Columns of winners: uid of the decision, number of candidate and of software, version of the op, and so on."""

_COLUMNS: dict[str, ColumnKind] = {
    "decision.uid": "text", "decision.candidate_id": "number", "winner.software_id": "number",
    "problem.op_version": "number", "problem.static_key": "text", "problem.dims": "text", "decision.created": "text",
    "decision.baselines": "text", "decision.transfers": "text", "decision.artifact_hash": "text",
}  # fmt: skip
"""Expressions of the columns above, in their order."""

_WINNERS = """
    FROM problem
    JOIN winner ON winner.problem_id = problem.id
    JOIN hardware ON hardware.id = winner.hardware_id
    JOIN decision ON decision.id = winner.decision_id
    WHERE problem.op = :op AND winner.regime = :regime AND hardware.key = :hardware
"""

_WINNING = "SELECT decision.uid, winner.regime FROM winner JOIN decision ON decision.id = winner.decision_id"

_ADDED = {"decision.transfers": (3, "'{}'"), "decision.artifact_hash": (6, "''")}
"""Columns that a later schema version added: that version, and the value in earlier ones."""

_CANDIDATES = """
    SELECT candidate.id, implementation.name, implementation.fingerprint, CAST(candidate.config AS TEXT)
    FROM candidate JOIN implementation ON implementation.id = candidate.implementation_id
    WHERE candidate.id IN ({})
"""

_CANDIDATE = "implementation.name, implementation.fingerprint, CAST(candidate.config AS TEXT)"

_FINALS = f"""
    SELECT {_CANDIDATE}, AVG(final.us)
    FROM decision
    JOIN final ON final.decision_id = decision.id
    JOIN candidate ON candidate.id = final.candidate_id
    JOIN implementation ON implementation.id = candidate.implementation_id
    WHERE decision.uid = :uid AND final.role = 'candidate'
    GROUP BY candidate.id, implementation.id
"""

_TRIALS = f"""
    SELECT {_CANDIDATE}, MIN(trial.median_us)
    FROM decision
    JOIN trial ON trial.problem_id = decision.problem_id AND trial.hardware_id = decision.hardware_id
        AND trial.software_id = decision.software_id AND trial.protocol_id = decision.protocol_id
    JOIN candidate ON candidate.id = trial.candidate_id
    JOIN implementation ON implementation.id = candidate.implementation_id
    WHERE decision.uid = :uid AND trial.status = 'ok' AND NOT trial.censored
    GROUP BY candidate.id, implementation.id
"""


_SOFTWARE = "SELECT id, CAST(identity AS TEXT) FROM software WHERE id IN ({})"

LATEST_RUNS = 8
"""Runs that are asked for a learnt rule, the latest first: a few may be of a version that learnt nothing."""

_RUNS = f"""
    SELECT run.id, CAST(run.summary AS TEXT)
    FROM run JOIN hardware ON hardware.id = run.hardware_id
    WHERE hardware.key = :hardware AND run.ended IS NOT NULL
    ORDER BY run.ended DESC, run.id LIMIT {LATEST_RUNS}
"""

_MOST_NUMBERS = 500
"""Row numbers in one IN list."""


_Found = tuple[list[Sequence[Any]], dict[int, AnsweredRow], dict[int, AnsweredRow], Any]


@dataclass(frozen=True)
class StoredWinner:
    """A winner with other implementations' times over its own, its transfers and its kernels (see ``Decision``).

    ``Store.history`` has all figures, in the decision with this uid.
    """

    uid: str
    problem: ProblemKey
    candidate: CandidateKey
    environment: Environment
    baselines: Mapping[str, float] = field(default_factory=dict)
    transfers: Mapping[str, Transfer] = field(default_factory=dict)
    artifact_hash: str = ""


@dataclass(frozen=True)
class Snapshot:
    """The winners of ``op`` on ``hardware`` in the database at ``url``, as the columns of the rows that hold them."""

    url: str = ""
    op: str = ""
    hardware: Mapping[str, Any] = field(default_factory=dict)
    columns: Sequence[Sequence[Any]] = ((),) * len(_COLUMNS)
    candidates: Mapping[int, AnsweredRow] = field(default_factory=dict)
    software: Mapping[int, AnsweredRow] = field(default_factory=dict)
    learnt: Any = None
    """The rule for the op from the latest run that knows the op, as stored in its summary under ``LEARNT``."""
    _decoded: dict[tuple[str, int], Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def count(self) -> int:
        """The number of winners."""
        return len(self.columns[UID])

    def winner(self, place: int) -> StoredWinner:
        """The winner in the row at ``place``. Raises InvalidRecordError for a row that cannot be decoded."""
        row = [column[place] for column in self.columns]
        uid, candidate, software, version, _, dims, _, baselines, transfers, kernels = row
        try:
            return StoredWinner(
                uid,
                ProblemKey(self.op, version, json.loads(dims)),
                self._once("candidate", candidate, self._candidate),
                self._once("environment", software, self._environment),
                _ratios(_parsed(baselines)),
                transfers_of(json.loads(transfers)),
                str(kernels),
            )
        except Exception as fault:  # whatever a row may hold
            raise InvalidRecordError(f"{self.url}: the winner {uid!s:.64}: {_shown(fault)}") from fault

    def dims(self, places: Sequence[int]) -> list[Any]:
        """The dimensions of the rows at ascending ``places``; None for those that are no JSON."""
        texts = at(self.columns[DIMS], places)
        try:  # all at once: a third of the time
            found = json.loads(f"[{','.join(texts)}]")
        except (ValueError, TypeError, RecursionError):
            found = []
        return found if len(found) == len(texts) else [_parsed(text) for text in texts]

    def alike(self) -> Iterator[tuple[Any, list[int]]]:
        """Static dimensions as they were stored, and the places of all rows with these; None for no JSON."""
        return ((_parsed(text), places) for text, places in places_of_each(self.columns[STATIC]).items())

    def transferring(self) -> list[int]:
        """The rows whose winners may run at other sizes, too, unless that cannot be decoded."""
        return unlike(self.columns[TRANSFERS], "{}")

    def transfers(self, place: int) -> Mapping[str, Transfer]:
        """The other sizes at which the winner in the row at ``place`` may run; empty where that cannot be decoded."""
        try:
            return transfers_of(json.loads(self.columns[TRANSFERS][place]))
        except Exception:
            return {}

    def software_of(self, place: int) -> Mapping[str, Any] | None:
        """The software under which the row at ``place`` was measured; None where it cannot be decoded."""
        try:
            environment: Environment = self._once("environment", self.columns[SOFTWARE][place], self._environment)
        except Exception:
            return None
        return environment.software

    def _candidate(self, number: int) -> CandidateKey:
        _, name, fingerprint, config = self.candidates[number]
        return CandidateKey(name, fingerprint, json.loads(config))

    def _environment(self, number: int) -> Environment:
        return Environment(self.hardware, json.loads(self.software[number][1]))

    def _once(self, kind: str, number: int, make: Callable[[int], Any]) -> Any:
        if (kind, number) not in self._decoded:
            self._decoded[kind, number] = make(number)
        return self._decoded[kind, number]


def read_winners(
    database: str | Path | None, op: str, hardware: Mapping[str, Any], regime: str, seconds: float
) -> Snapshot:
    """The winners of ``op`` on ``hardware`` in the database at ``database``, see ``Store.open``.

    Raises MissingDatabaseError where there is none, UnreachableDatabaseError where it does not answer within
    ``seconds``, and the errors of ``Store.open``.
    """
    key = digest(plain_mapping(hardware, "hardware"))
    wanted = {"op": op, "regime": regime, "hardware": key}
    columns, candidates, software, learnt = answered(database, seconds, lambda ask: _asked(ask, wanted))
    return Snapshot(locate(database).shown, op, hardware, columns, candidates, software, learnt)


def read_identity(database: str | Path | None, seconds: float) -> str:
    """A hash of which decisions are winners in a database, "" if none is. Raises as :func:`read_winners`."""
    found = answered(database, seconds, lambda ask: ask(_WINNING, {}))
    return digest(sorted(f"{regime} {uid}" for uid, regime in found)) if found else ""


def read_runners(database: str | Path | None, uid: str, seconds: float) -> dict[str, CandidateKey]:
    """The candidates that a decision was measured against, see ``runners``. Raises as :func:`read_winners`."""
    return answered(database, seconds, lambda ask: runners(ask, uid))


def runners(ask: QueryAnswers, uid: str) -> dict[str, CandidateKey]:
    """The fastest candidate of each implementation in the finals of a decision, else in the trials of its problem.

    The winner's own implementation is among them.
    """
    wanted = {"uid": uid}
    return best_of_each(ask(_TRIALS, wanted)) | best_of_each(ask(_FINALS, wanted))


def best_of_each(rows: Iterable[AnsweredRow]) -> dict[str, CandidateKey]:
    """The fastest of rows of (implementation, fingerprint, config as JSON, time), by implementation.

    Of equally fast ones the first by fingerprint and configuration, in whatever order a database has them. Rows without
    a time, and rows that cannot be read, are left out.
    """
    timed = [one for row in rows if (one := _timed(row)) is not None]
    return {key.implementation: key for _, key in sorted(timed, key=lambda one: one[0], reverse=True)}


def _timed(row: AnsweredRow) -> tuple[tuple[float, str, str], CandidateKey] | None:
    """A row's place among others, and its candidate."""
    name, fingerprint, config, us = row
    try:
        key = CandidateKey(name, fingerprint, json.loads(config))
        return (float(us), fingerprint, canonical_json(key.config)), key
    except UNREADABLE:
        return None


def _asked(ask: Ask, wanted: Mapping[str, Any]) -> _Found:
    version = int(ask(STAMPS, {})[0][0])
    wanted_columns = {
        name if version >= _ADDED.get(name, (0,))[0] else _ADDED[name][1]: kind for name, kind in _COLUMNS.items()
    }
    columns = read_columns(ask, wanted_columns, _WINNERS, wanted)
    candidates = {row[0]: row for row in _numbered(ask, _CANDIDATES, columns[CANDIDATE])}
    software = {row[0]: row for row in _numbered(ask, _SOFTWARE, columns[SOFTWARE])}
    return columns, candidates, software, _learnt(ask, wanted)


def _learnt(ask: Ask, wanted: Mapping[str, Any]) -> Any:
    for _, text in ask(_RUNS, {"hardware": wanted["hardware"]}):
        summary = _parsed(text)
        learnt = summary.get(LEARNT) if isinstance(summary, dict) else None
        if isinstance(learnt, dict) and wanted["op"] in learnt:
            return learnt[wanted["op"]]
    return None


def _numbered(ask: Ask, query: str, numbers: Iterable[Any]) -> Iterator[AnsweredRow]:
    wanted = sorted({number for number in set(numbers) if type(number) is int})
    for start in range(0, len(wanted), _MOST_NUMBERS):
        yield from ask(query.format(", ".join(map(str, wanted[start : start + _MOST_NUMBERS]))), {})


def _ratios(given: Any) -> dict[str, float]:
    """The ratios by implementation among what a column ``baselines`` holds."""
    found = given.items() if isinstance(given, dict) else ()
    return {name: ratio for name, ratio in found if name and type(ratio) in {int, float} and 0 < ratio < math.inf}


def _parsed(text: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None


def _shown(fault: Exception) -> str:
    text = str(fault) if isinstance(fault, InvalidRecordError) else f"{type(fault).__name__}: {fault}"
    return text.splitlines()[0][:200] if text else type(fault).__name__
