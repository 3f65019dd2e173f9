"""Plain data that goes into the store and comes out of it. Times are microseconds, instants are UTC."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, ClassVar, Literal

from .errors import InvalidRecordError
from .keys import canonical_json, digest, finite, plain_mapping, plain_text

Value = int | float | str | bool
"""What a dimension may be."""

Role = Literal["candidate", "copy", "floor"]
"""An entrant of the finals: a candidate, a second copy of the incumbent, or the device copy that is the floor."""


class _Keyed(ABC):
    """Equal by key, so that ``True`` and ``1`` differ, and hashable although it holds mappings."""

    @property
    @abstractmethod
    def key(self) -> str:
        """What makes it the same as another."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, _Keyed) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True, eq=False)
class Environment(_Keyed):
    """Where something was measured: what the hardware is, and the versions of the software."""

    hardware: Mapping[str, Any]
    software: Mapping[str, Any]

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        _set(self, hardware=plain_mapping(self.hardware, "hardware"), software=plain_mapping(self.software, "software"))

    @cached_property
    def hardware_key(self) -> str:
        """SHA-256 of the hardware identity."""
        return digest(self.hardware)

    @cached_property
    def software_key(self) -> str:
        """SHA-256 of the software identity."""
        return digest(self.software)

    @cached_property
    def key(self) -> str:
        """SHA-256 of both."""
        return digest([self.hardware, self.software])


@dataclass(frozen=True, eq=False)
class Protocol(_Keyed):
    """How something was timed. ``regime`` is what is compared ("cold"); ``details`` are everything else."""

    regime: str
    details: Mapping[str, Any] = field(default_factory=dict)

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        _named(self.regime, "protocol.regime")
        _set(self, details=plain_mapping(self.details, "protocol.details"))

    @cached_property
    def key(self) -> str:
        """SHA-256 of regime and details."""
        return digest({"regime": self.regime, "details": self.details})


@dataclass(frozen=True, eq=False)
class ProblemKey(_Keyed):
    """One op, at one version, with named dimensions. ``static`` names the dimensions that neighbours share."""

    op: str
    op_version: int
    dims: Mapping[str, Value]
    static: tuple[str, ...] = ()

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        _named(self.op, "problem.op")
        dims = plain_mapping(self.dims, f"{self.op}: dims")
        for name, value in dims.items():
            if not isinstance(value, bool | int | float | str):
                raise InvalidRecordError(f"{self.op}: dims[{name!r}] is {value!r}, expected a number, text or boolean")
        unknown = sorted(set(self.static) - set(dims))
        if unknown:
            raise InvalidRecordError(f"{self.op}: static names {unknown}, which are not in dims {sorted(dims)}")
        _set(self, dims=dims, static=tuple(sorted(set(self.static))))

    @cached_property
    def static_key(self) -> str:
        """Canonical JSON of the static dimensions: neighbours have the same."""
        return canonical_json({name: self.dims[name] for name in self.static})

    @cached_property
    def key(self) -> str:
        """SHA-256 of op, version and dimensions; which of them are static is not part of it."""
        return digest({"op": self.op, "op_version": self.op_version, "dims": self.dims})


@dataclass(frozen=True, eq=False)
class CandidateKey(_Keyed):
    """An implementation, the fingerprint of its source, and one of its configs. The op is the problem's."""

    implementation: str
    fingerprint: str
    config: Mapping[str, Any] = field(default_factory=dict)

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        _named(self.implementation, "candidate.implementation")
        _set(self, config=plain_mapping(self.config, f"{self.implementation}: config"))

    @cached_property
    def key(self) -> str:
        """SHA-256 of all three."""
        return digest({"implementation": self.implementation, "fingerprint": self.fingerprint, "config": self.config})


def new_uid() -> str:
    """A random identity (UUID 4, hexadecimal) by which merges of databases recognise a record."""
    return uuid.uuid4().hex


def now() -> datetime:
    """This instant, in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Run:
    """One tuning run. ``details`` are known when it starts, ``summary`` when it ends (A/A noise, power, clocks)."""

    uid: str
    environment: Environment
    started: datetime
    ended: datetime | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        _named(self.uid, "run.uid")
        _set(
            self,
            started=_utc(self.started, "run.started"),
            ended=None if self.ended is None else _utc(self.ended, "run.ended"),
            details=plain_mapping(self.details, "run.details", lenient=True),
            summary=plain_mapping(self.summary, "run.summary", lenient=True),
        )


@dataclass(frozen=True)
class Trial:
    """One candidate tried on one problem. ``samples`` and ``median_us`` are microseconds.

    ``details`` holds what is not compared (error figures, clocks); a nan or infinity in it is kept as text.
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

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        _named(self.status, "trial.status")
        _named(self.uid, "trial.uid")
        _set(
            self,
            message=plain_text(self.message),
            stop_reason=plain_text(self.stop_reason),
            median_us=finite(self.median_us, "trial.median_us"),
            samples=tuple(_sample(value, index) for index, value in enumerate(self.samples)),
            details=plain_mapping(self.details, "trial.details", lenient=True),
            created=_utc(self.created, "trial.created"),
        )


@dataclass(frozen=True)
class Final:
    """One measurement of the finals. ``candidate`` is None for the floor's device copy."""

    candidate: CandidateKey | None
    role: Role
    block: int
    round: int
    position: int
    us: float

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.role not in {"candidate", "copy", "floor"}:
            raise InvalidRecordError(f"final.role is {self.role!r}, expected candidate, copy or floor")
        _set(self, us=finite(self.us, "final.us"))


@dataclass(frozen=True)
class Interval:
    """A figure with the interval it is known to lie in."""

    value: float
    low: float
    high: float

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        for name in ("value", "low", "high"):
            if finite(getattr(self, name), f"interval.{name}") is None:
                raise InvalidRecordError(f"interval.{name} is None, expected a number")


@dataclass(frozen=True)
class Decision:
    """What the finals of one problem decided: the candidate that dispatch should run, and the evidence.

    ``median_us`` is the candidate's time, ``floor_us`` that of a device copy of the same bytes. ``ratio`` with its
    interval ``lo`` to ``hi`` compares it with the incumbent, ``aa`` is the noise of two copies of one candidate.
    ``baselines`` maps other implementations to their time over the winner's, paired. ``default_ratio`` is the
    default's, with the interval in which a remeasurement is expected to find it. ``ties`` names the candidates that
    could not be told from the winner. ``previous`` is the uid of the decision it was compared against.
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

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        _named(self.uid, "decision.uid")
        if self.median_us is None:
            raise InvalidRecordError("decision.median_us is None, expected microseconds")
        figures = {name: getattr(self, name) for name in ("median_us", "floor_us", "ratio", "lo", "hi", "aa")}
        _set(
            self,
            **{name: finite(value, f"decision.{name}") for name, value in figures.items()},
            verdict=plain_text(self.verdict),
            baselines={name: finite(value, f"baselines[{name!r}]") for name, value in self.baselines.items()},
            ties=tuple(plain_text(name) for name in self.ties),
            created=_utc(self.created, "decision.created"),
        )


@dataclass(frozen=True)
class Statistics:
    """How much a store holds. ``size_bytes`` is the file's, or the database's on a server."""

    schema_version: int
    runs: int
    trials: int
    problems: int
    candidates: int
    decisions: int
    winners: int
    size_bytes: int


def _set(record: object, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(record, name, value)


def _named(value: str, where: str) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidRecordError(f"{where} is {value!r}, expected text")


def _sample(value: float, index: int) -> float:
    number = finite(value, f"trial.samples[{index}]")
    if number is None:
        raise InvalidRecordError(f"trial.samples[{index}] is None, expected microseconds")
    return number


def _utc(value: datetime, where: str) -> datetime:
    if value.tzinfo is None:
        raise InvalidRecordError(f"{where} is {value}, which has no time zone", hint="use datetime.now(UTC)")
    return value.astimezone(UTC)
