"""Problems: one op at one shape, dtype and set of attributes, the unit that is tuned, stored and looked up."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import torch

from .arguments.specs import (
    FULL_ALIGNMENT,
    Argument,
    Arguments,
    TensorSpec,
    Value,
    dtype_name,
    fits_int32,
    torch_dtype,
)
from .arguments.traits import Traits
from .errors import InvalidArgumentError, InvalidDefinitionError, did_you_mean

__all__ = [
    "FULL_ALIGNMENT",
    "Argument",
    "Arguments",
    "Problem",
    "TensorSpec",
    "Traits",
    "Value",
    "canonical_json",
    "check_choice",
    "check_choices",
    "check_integer",
    "check_positive",
    "dtype_name",
    "exact",
    "exact_items",
    "fits_int32",
    "getter",
    "torch_dtype",
]

# made once: making an encoder takes longer than most encodings
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no blanks, so that equal data are equal text (and ``True`` is not ``1``)."""
    return _CANONICAL.encode(value)


def exact(value: Any) -> Hashable:
    """A key that is equal for two values only where their canonical JSON is: 1, 1.0 and True, 0.0 and -0.0 differ."""
    if isinstance(value, list | tuple):
        return tuple(map(exact, value))
    kind = value.__class__
    return kind, value if value or kind is str else repr(value)


def exact_items(values: Mapping[str, Any]) -> Hashable:
    """A key of the names and values of a mapping: equal keys mean that ``exact`` of each value is equal."""
    given = tuple(values.values())
    kinds = tuple(map(type, given))
    if not _SCALARS.issuperset(kinds) or (float in kinds and 0 in given):  # 0.0 and -0.0 are equal and of one type
        return tuple(values), exact(given)
    return *values, *given, *kinds


LARGEST_SIZE = 2**48
"""The largest size of a tensor that a problem may have: so many bytes are what a CPU can address."""

_SCALARS = frozenset({int, float, str, bool})


def getter(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """A function that returns the values of ``names`` in a mapping as a tuple, a part of a key; in C for speed.

    For a single name its value is there twice.
    """
    if not names:
        return lambda _: ()
    return itemgetter(*names) if len(names) > 1 else itemgetter(names[0], names[0])


_new = object.__new__


@dataclass(frozen=True, eq=False, init=False)
class Problem:
    """One op at one shape, dtype and set of attributes: the unit that is tuned and stored.

    ``dims`` are named dimensions and tuned attributes (``rows``, ``cols``, ``dtype``); they alone make the identity.
    ``traits`` tell an implementation whether it can run; they are not stored. The host makes them: see ``Op.pose``.
    A dimension reads as an attribute: ``problem.rows``.
    """

    op: str
    dims: Mapping[str, Value]
    traits: Traits

    def __init__(self, op: str, dims: Mapping[str, Value], traits: Traits | Mapping[str, Value] | None = None) -> None:
        traits = traits if isinstance(traits, Traits) else Traits(told=traits)
        own = self.__dict__
        # dimensions are stored as attributes: __getattr__ would take a microsecond for each
        own.update(dims, op=op, dims=MappingProxyType(dict(dims)), traits=traits)
        if "misaligned" in dims:
            del own["misaligned"]

    @staticmethod
    def of_call(op: str, dims: dict[str, Value], traits: Traits) -> Problem:
        """The problem with these dimensions, which must not change any more; made without ``__init__``, for speed.

        No dimension is named ``misaligned``.
        """
        made: Problem = _new(Problem)
        own = made.__dict__
        own.update(dims)
        own["op"] = op
        own["dims"] = MappingProxyType(dims)
        own["traits"] = traits
        return made

    def watched(self, dims: Mapping[str, Value]) -> Problem:
        """This problem with ``dims`` that record which dimensions are read."""
        return _watched(self.op, dims, self.traits)

    def misaligned(self) -> Problem:
        """This problem, posed by tensors none of which starts at a multiple of 16 bytes."""
        made = object.__new__(Problem)
        made.__dict__.update(self.__dict__, traits=self.traits.misaligned())
        return made

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dims":  # a copy is asked for names before it has dimensions
            raise AttributeError(name)
        try:
            return self.dims[name]
        except KeyError:
            raise AttributeError(f"problem of {self.op} has no dimension {name!r}; it has {list(self.dims)}") from None

    def __reduce__(self) -> tuple[object, ...]:
        return Problem, (self.op, dict(self.dims), self.traits)

    @property
    def key(self) -> str:
        """Canonical JSON of op and dims: two problems are the same when their keys are."""
        return canonical_json({"op": self.op, "dims": dict(self.dims)})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The torch dtype that ``dims["dtype"]`` names."""
        return torch_dtype(str(self.dims["dtype"]))

    def __repr__(self) -> str:
        return f"Problem(op={self.op!r}, dims={dict(self.dims)!r}, traits={self.traits!r})"

    def __str__(self) -> str:
        return f"{self.op}({', '.join(f'{name}={value}' for name, value in self.dims.items())})"


class _WatchedProblem(Problem):
    """A problem whose ``dims`` record reads; a read of ``vars(problem)``, which has the dimensions, reads them all."""

    def __new__(cls, op: str, dims: Mapping[str, Value], traits: Any = None) -> Problem:  # type: ignore[misc]
        """A problem that records nothing, as ``type(problem)(...)`` and ``dataclasses.replace`` expect it."""
        return Problem(op, dims, traits)

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        return {**self.dims, "op": self.op, "dims": self.dims, "traits": self.traits}

    def misaligned(self) -> Problem:
        """This problem, posed by tensors none of which starts at a multiple of 16 bytes; it records reads here."""
        return _watched(self.op, self.dims, self.traits.misaligned())


def _watched(op: str, dims: Mapping[str, Value], traits: Traits) -> Problem:
    made: Problem = _new(_WatchedProblem)
    for name, value in (("op", op), ("dims", dims), ("traits", traits)):
        object.__setattr__(made, name, value)  # the class is frozen, and its ``__dict__`` a copy
    return made


def check_integer(op: str, name: str, given: object) -> None:
    """Raise InvalidArgumentError unless ``given`` is an integer."""
    if isinstance(given, bool) or not isinstance(given, int):
        raise InvalidArgumentError(f"{op}: {name} must be an integer, got {given!r:.80}")


def check_positive(op: str, name: str, given: object) -> None:
    """Raise InvalidArgumentError unless ``given`` is an integer of at least 1, and not beyond any tensor's size."""
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise InvalidArgumentError(f"{op}: {name} must be a positive integer, got {given!r:.80}")
    if given > LARGEST_SIZE:
        shown = given if given < 2**64 else f"a number of {given.bit_length()} bits"
        raise InvalidArgumentError(
            f"{op}: {name} is {shown}, and no machine holds so many elements", hint=f"expected at most {LARGEST_SIZE}"
        )


def check_choices(op: str, name: str, values: Any) -> None:
    """Raise InvalidDefinitionError unless ``values`` are distinct texts or booleans for dimension ``name``."""
    sound = isinstance(values, tuple) and values and all(type(value) in {str, bool} for value in values)
    if not sound or len(set(values)) < len(values) or "" in values:
        raise InvalidDefinitionError(
            f"op {op!r}: the choices of {name} are {values!r:.80}",
            hint='expected a tuple of distinct texts or booleans, e.g. ("none", "tanh") or (False, True)',
        )


def check_choice(op: str, name: str, given: object, values: Sequence[Value]) -> None:
    """Raise InvalidArgumentError unless ``given`` is one of ``values``; 1 is not True."""
    for value in values:  # a generator would take four times as long, at each new size of a call
        # 1 equals True and 1.0 in Python, but makes another problem
        if type(given) is type(value) and given == value:
            return
    shown = ", ".join(map(str, values))
    texts = [value for value in values if isinstance(value, str)]
    raise InvalidArgumentError(
        f"{op}: {name} must be one of {shown}, got {given!r:.80}",
        hint=did_you_mean(given, texts) if isinstance(given, str) else "",
    )
