"""Identities: plain data that says where, how, on which problem and with which candidate something was measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import UnionType
from typing import Any, ClassVar

from .errors import InvalidRecordError
from .keys import canonical_json, digest, plain_mapping

StoredValue = int | float | str | bool
"""The types that a dimension's value may have."""


class Exchanged:
    """Base of the data in exchange files: a field that the class does not declare is a fault of the file."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


class _Identity(Exchanged, ABC):
    """An identity: hashable, and equal to another with an equal key, so that ``True`` and ``1`` differ."""

    @property
    @abstractmethod
    def key(self) -> str:
        """SHA-256 of the identity; equal identities have equal keys."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, _Identity) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True, eq=False)
class Environment(_Identity):
    """The hardware and the software under which something was measured, each as named values."""

    hardware: Mapping[str, Any]
    software: Mapping[str, Any]

    def __post_init__(self) -> None:
        set_fields(
            self, hardware=plain_mapping(self.hardware, "hardware"), software=plain_mapping(self.software, "software")
        )

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
        """SHA-256 of hardware and software identity."""
        return digest([self.hardware, self.software])


REGIMES = ("cold", "hot")
"""``cold``: a call finds its inputs in memory. ``hot``: the cache holds them as far as they fit."""


@dataclass(frozen=True, eq=False)
class Protocol(_Identity):
    """How something was timed: the regime, within which times are compared, and every other detail.

    Regimes are those of ``REGIMES``.
    """

    regime: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_text(self.regime, "protocol.regime")
        set_fields(self, details=plain_mapping(self.details, "protocol.details"))

    @cached_property
    def key(self) -> str:
        """SHA-256 of regime and details."""
        return digest({"regime": self.regime, "details": self.details})


@dataclass(frozen=True, eq=False)
class ProblemKey(_Identity):
    """One op, at one version, with named dimensions. ``static`` names the dimensions that neighbours share."""

    op: str
    op_version: int
    dims: Mapping[str, StoredValue]
    static: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_text(self.op, "problem.op")
        if type(self.op_version) is not int or not 0 <= self.op_version < 2**31:
            raise InvalidRecordError(
                f"{self.op}: op_version is {_shown(self.op_version)}, expected a number from 0 to {2**31 - 1}"
            )
        dims = plain_mapping(self.dims, f"{self.op}: dims")
        for name, value in dims.items():
            if not isinstance(value, bool | int | float | str):
                raise InvalidRecordError(f"{self.op}: dims[{name!r}] is {value!r}, expected a number, text or boolean")
            if type(value) is int and not -(2**63) <= value < 2**63:
                raise InvalidRecordError(f"{self.op}: dims[{name!r}] is {_shown(value)}, expected 64 bits at most")
        unknown = sorted(set(self.static) - set(dims))
        if unknown:
            raise InvalidRecordError(f"{self.op}: static names {unknown}, which are not in dims {sorted(dims)}")
        set_fields(self, dims=dims, static=tuple(sorted(set(self.static))))

    @cached_property
    def static_key(self) -> str:
        """Canonical JSON of the static dimensions, equal for neighbours."""
        return canonical_json({name: self.dims[name] for name in self.static})

    @cached_property
    def key(self) -> str:
        """SHA-256 of op, version and dimensions; which of them are static is not part of it."""
        return digest({"op": self.op, "op_version": self.op_version, "dims": self.dims})


@dataclass(frozen=True, eq=False)
class CandidateKey(_Identity):
    """An implementation, the fingerprint of its source, and one of its configs. The op is the problem's."""

    implementation: str
    fingerprint: str
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_text(self.implementation, "candidate.implementation")
        require_type(self.fingerprint, str, "candidate.fingerprint")
        set_fields(self, config=plain_mapping(self.config, f"{self.implementation}: config"))

    @cached_property
    def key(self) -> str:
        """SHA-256 of implementation, fingerprint and config."""
        return digest({"implementation": self.implementation, "fingerprint": self.fingerprint, "config": self.config})


def set_fields(record: object, **values: object) -> None:
    """Sets fields of a frozen dataclass, for use in its ``__post_init__``."""
    for name, value in values.items():
        object.__setattr__(record, name, value)


def require_type(value: object, expected: type | UnionType, where: str) -> None:
    """Raises InvalidRecordError, in which ``where`` names the value, unless ``value`` is of an expected type."""
    if not isinstance(value, expected):
        raise InvalidRecordError(f"{where} is {value!r:.40}, expected {getattr(expected, '__name__', expected)}")


def require_text(value: str, where: str) -> None:
    """Raises InvalidRecordError, in which ``where`` names the value, unless ``value`` is text that is not empty."""
    if not isinstance(value, str) or not value:
        raise InvalidRecordError(f"{where} is {value!r}, expected text")


def _shown(value: object) -> str:
    """``value`` for a message. A number of thousands of digits has no text: Python refuses to write it."""
    return (
        f"a number of {value.bit_length()} bits" if isinstance(value, int) and value.bit_length() > 64 else repr(value)
    )
