"""Records: plain data that the store takes and returns. Times are microseconds, instants are UTC."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from .errors import InvalidRecordError
from .identities import (
    CandidateKey,
    Environment,
    Exchanged,
    ProblemKey,
    Protocol,
    require_text,
    require_type,
    set_fields,
)
from .keys import canonical_json, finite, finite_or_none, plain_mapping, plain_text

Role = Literal["candidate", "copy", "floor"]
"""An entrant of the finals: a candidate, a second copy of the incumbent, or the device copy that is the floor."""


def new_uid() -> str:
    """A random identity (UUID 4, hexadecimal) by which merges of databases recognise a record."""
    return uuid.uuid4().hex


def now() -> datetime:
    """This instant, in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class StoredRun(Exchanged):
    """One tuning run. ``details`` are known when it starts, ``summary`` when it ends (A/A noise, power, clocks)."""

    uid: str
    environment: Environment
    started: datetime
    ended: datetime | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_text(self.uid, "run.uid")
        set_fields(
            self,
            started=_utc(self.started, "run.started"),
            ended=None if self.ended is None else _utc(self.ended, "run.ended"),
            details=plain_mapping(self.details, "run.details", lenient=True),
            summary=plain_mapping(self.summary, "run.summary", lenient=True),
        )


@dataclass(frozen=True)
class Trial(Exchanged):
    """One candidate tried on one problem. ``samples`` and ``median_us`` are microseconds.

    ``details`` holds values that are never compared (error figures, clocks); a nan or infinity among them becomes text.
    """

    problem: ProblemKey
    candidate: CandidateKey
    environment: Environment
    protocol: Protocol
    status: str
    message: str = ""
    median_us: float | None = None
    samples: tuple[float, ...] = ()
    censored: bool = False
    stop_reason: str = ""
    artifact_hash: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    uid: str = field(default_factory=new_uid)
    created: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        require_text(self.status, "trial.status")
        require_text(self.uid, "trial.uid")
        set_fields(
            self,
            message=plain_text(self.message),
            stop_reason=plain_text(self.stop_reason),
            median_us=finite_or_none(self.median_us, "trial.median_us"),
            samples=times(self.samples),
            details=plain_mapping(self.details, "trial.details", lenient=True),
            created=_utc(self.created, "trial.created"),
        )


class PlainTrial(NamedTuple):
    """A trial of the run ``run`` whose ``samples`` and ``details`` are JSON, as a database and a file hold them."""

    run: str
    problem: ProblemKey
    candidate: CandidateKey
    environment: Environment
    protocol: Protocol
    uid: str
    status: str
    message: str
    median_us: float | None
    samples: str
    censored: bool
    stop_reason: str
    artifact_hash: str
    details: str
    created: datetime

    @classmethod
    def of(cls, run: str, trial: Trial) -> PlainTrial:
        """The trial of a run as plain values."""
        fields = {name: getattr(trial, name) for name in cls._fields[1:]}
        texts = {name: canonical_json(fields[name]) for name in ("samples", "details")}
        return cls(run, **{**fields, **texts})

    def trial(self) -> Trial:
        """The trial as a record. Raises InvalidRecordError for values that a trial cannot have."""
        fields = self._asdict()
        del fields["run"]
        samples, details = fields.pop("samples"), fields.pop("details")
        return Trial(**fields, samples=tuple(json.loads(samples)), details=json.loads(details))


@dataclass(frozen=True)
class Final(Exchanged):
    """One measurement of the finals. ``candidate`` is None for the floor's device copy."""

    candidate: CandidateKey | None
    role: Role
    block: int
    round: int
    position: int
    us: float

    def __post_init__(self) -> None:
        if self.role not in {"candidate", "copy", "floor"}:
            raise InvalidRecordError(f"final.role is {self.role!r}, expected candidate, copy or floor")
        set_fields(self, us=finite(self.us, "final.us"))


_WIDE = 4.0


def is_noise(low: float | None, high: float | None) -> bool:
    """Whether a ratio's interval is so wide that the ratio says nothing: its upper end over four times its lower."""
    return low is not None and high is not None and high > _WIDE * low


@dataclass(frozen=True)
class Interval(Exchanged):
    """A value and the ``low`` and ``high`` end of its interval."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        for name in ("value", "low", "high"):
            finite(getattr(self, name), f"interval.{name}")


@dataclass(frozen=True)
class Transfer(Exchanged):
    """The sizes ``low`` to ``high`` of a static dimension at which a decision's candidate may run, too.

    The candidate was right at both ends. ``codes`` are hashes of the code compiled there: no other code was verified.
    Without codes, ``low`` and ``high`` are the decision's own size: the candidate was wrong at another size.
    """

    low: int
    high: int
    codes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        ends = self.low, self.high
        if not all(type(size) is int for size in ends) or not 0 < self.low <= self.high:
            raise InvalidRecordError(f"transfer from {self.low!r:.40} to {self.high!r:.40}, expected sizes in order")
        set_fields(self, codes=tuple(plain_text(code) for code in self.codes))


def transfers_of(stored: Mapping[str, Any]) -> dict[str, Transfer]:
    """The transfers in a column, by dimension. Raises InvalidRecordError, KeyError or TypeError for a bad one."""
    return {name: Transfer(one["low"], one["high"], tuple(one["codes"])) for name, one in stored.items()}


@dataclass(frozen=True)
class Decision(Exchanged):
    """The outcome of one problem's finals: the candidate that dispatch should run, and the evidence.

    ``median_us`` is the candidate's time, ``floor_us`` that of a device copy of as many bytes. ``ratio`` is the
    incumbent's time over the candidate's, with its interval ``lo`` to ``hi``; ``aa`` is the noise between two copies of
    one candidate. ``baselines`` maps other implementations to their time over the candidate's, ``default_ratio`` is the
    default's time over the candidate's with the interval in which another measurement is expected to find it. ``ties``
    names the candidates that could not be told from this one. ``previous`` is the uid of the incumbent's decision.
    ``transfers`` says by static dimension at which other sizes the candidate may run, too. ``artifact_hash`` is that of
    the kernels that the candidate compiled, as in its trial; "" if it compiled none, or if that is unknown.
    """

    problem: ProblemKey
    environment: Environment
    protocol: Protocol
    candidate: CandidateKey
    median_us: float
    floor_us: float | None = None
    ratio: float | None = None
    lo: float | None = None
    hi: float | None = None
    aa: float | None = None
    verdict: str = ""
    baselines: Mapping[str, float] = field(default_factory=dict)
    trial_uid: str | None = None
    previous: str | None = None
    uid: str = field(default_factory=new_uid)
    created: datetime = field(default_factory=now)
    default_ratio: Interval | None = None
    ties: tuple[str, ...] = ()
    transfers: Mapping[str, Transfer] = field(default_factory=dict)
    artifact_hash: str = ""

    def __post_init__(self) -> None:
        require_text(self.uid, "decision.uid")
        require_type(self.artifact_hash, str, "decision.artifact_hash")
        for name in ("trial_uid", "previous"):
            require_type(getattr(self, name), str | None, f"decision.{name}")
        figures = {name: getattr(self, name) for name in ("floor_us", "ratio", "lo", "hi", "aa")}
        set_fields(
            self,
            median_us=finite(self.median_us, "decision.median_us"),
            **{name: finite_or_none(value, f"decision.{name}") for name, value in figures.items()},
            verdict=plain_text(self.verdict),
            baselines={name: finite(value, f"baselines[{name!r}]") for name, value in self.baselines.items()},
            ties=tuple(plain_text(name) for name in self.ties),
            transfers=dict(self.transfers),
            created=_utc(self.created, "decision.created"),
        )

    @property
    def fraction_of_floor(self) -> float | None:
        """The floor's time over the candidate's; None where one of them is not known."""
        return self.floor_us / self.median_us if self.floor_us and self.median_us > 0 else None

    @property
    def is_noise(self) -> bool:
        """True if other work disturbed the finals so much that no ratio tells by how much the winner is faster."""
        default = self.default_ratio
        return is_noise(self.lo, self.hi) or (default is not None and is_noise(default.low, default.high))

    def time_over(self, implementation: str) -> float | None:
        """An implementation's time over the candidate's; None where it did not enter the finals."""
        return 1.0 if implementation == self.candidate.implementation else self.baselines.get(implementation)


@dataclass(frozen=True)
class Statistics:
    """The number of rows per kind of record. ``size_bytes`` is the size of the file, or of a server's database."""

    schema_version: int
    runs: int
    trials: int
    problems: int
    candidates: int
    decisions: int
    winners: int
    size_bytes: int


def times(samples: Sequence[float]) -> tuple[float, ...]:
    """The samples of a trial. Raises InvalidRecordError for one that is no finite number."""
    if {*map(type, samples)} <= {float} and math.isfinite(math.fsum(map(abs, samples))):
        return tuple(samples)
    return tuple(finite(value, f"trial.samples[{index}]") for index, value in enumerate(samples))


def _utc(value: datetime, where: str) -> datetime:
    if value.tzinfo is None:
        raise InvalidRecordError(f"{where} is {value}, which has no time zone", hint="use datetime.now(UTC)")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidRecordError(f"{where} is {value}, which no calendar has in UTC") from None
