"""The shapes file: which problems to tune, as YAML. The grammar is in docs/shapes.md."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, Protocol, cast

import torch
from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from ...contract import COUNT, Op
from ...errors import InvalidArgumentError, RegistryError, ShapesFileError, UnknownNameError, unknown_op
from ...problem import Problem, check_choice
from ...untrusted.yaml_document import Document, text_of
from . import box

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_Entry = dict[str, Any]
"""An entry of a shapes file: the values of each dimension, and the count where one is given."""

MOST_PROBLEMS = 100_000
"""Problems of a file at most: tuning more would take days, so that such a file is an error."""

_LARGEST = 2**63 - 1
_MOST_BITS_SHOWN = 256
"""Larger integers are not written out in messages: Python refuses to write an integer of 4300 digits."""


class Ops(Protocol):
    """The part of a catalog that reading shapes, and deriving those of a model, needs."""

    def ops(self) -> Mapping[str, Op]:
        """Every op by name."""


@dataclass(frozen=True)
class Shapes:
    """The problems of a shapes file by op, without duplicates, in the file's order.

    ``counts`` says how often a program calls each of them; it is empty when no entry says so.
    """

    problems: Mapping[str, list[Problem]]
    counts: Mapping[Problem, int] = field(default_factory=dict)

    @property
    def all(self) -> tuple[Problem, ...]:
        """The problems of every op, in order."""
        return tuple(itertools.chain.from_iterable(self.problems.values()))


def load_shapes(path: str | Path, catalog: Ops, ops: Iterable[str] = ()) -> dict[str, list[Problem]]:
    """The problems of :func:`read_shapes`, by op."""
    return dict(read_shapes(path, catalog, ops).problems)


def read_shapes(path: str | Path, catalog: Ops, ops: Iterable[str] = ()) -> Shapes:
    """The problems that a shapes file lists, and their counts. ``configs/llm.yaml`` and its like are in the package.

    ``ops`` keeps only those; each must be in the file. Of other ops' entries only the form is checked, since posing the
    thousands of problems of a long file takes seconds. Raises ShapesFileError naming file, line, key and what was
    expected, and UnknownNameError for an unknown op in ``ops``.
    """
    known = catalog.ops()
    wanted = list(dict.fromkeys(ops))
    for name in wanted:
        if name not in known:
            raise unknown_op(name, known)
    file = _File(box.found(Path(path)))
    entries = file.entries(known)
    for name in wanted:
        if name not in entries:
            raise ShapesFileError(f"{path}: no shapes for {name}", hint=f"the file has: {', '.join(entries)}")
    kept = {name: file.posed(known[name], listed) for name, listed in entries.items() if not wanted or name in wanted}
    counts = {problem: count for counted in kept.values() for problem, count in counted.items()}
    told = any(counts.values())
    # beside entries with a count, one without counts once
    return Shapes(
        {name: list(counted) for name, counted in kept.items()},
        {problem: max(count, 1) for problem, count in counts.items()} if told else {},
    )


class _File:
    """One shapes file: its entries by op, and the problems that they list."""

    def __init__(self, path: Path) -> None:
        self._document = Document(path, text_of(path))
        self._fault = self._document.fault

    def entries(self, known: Mapping[str, Op]) -> dict[str, list[_Entry]]:
        """The entries of every op of the file, in its order, with values of the right kinds."""
        data = self._document.data
        if data is None:
            raise self._fault((), "the file is empty", "expected an op with a list of entries, see docs/shapes.md")
        if not isinstance(data, dict):
            raise self._fault((), f"got a {_kind(data)}", "expected a mapping from ops to lists of entries")
        for name in data:
            if name not in known:
                unknown = unknown_op(name, known)
                raise self._fault((name,), unknown.message, unknown.hint)
        return {name: self._checked(known[name], entries) for name, entries in data.items()}

    def _checked(self, op: Op, entries: Any) -> list[_Entry]:
        try:
            checked: list[dict[str, Any]] = _entries_of(op).validate_python(entries)
        except ValidationError as fault:
            raise self._invalid(op, fault) from None
        # in the file's order, which validation has lost
        return [{name: entry[name] for name in written} for entry, written in zip(checked, entries, strict=True)]

    def posed(self, op: Op, entries: Sequence[_Entry]) -> dict[Problem, int]:
        """The op's problems with the sum of their counts, 0 where no entry gives one."""
        found: dict[Problem, int] = {}
        total = 0  # duplicates included: finding them takes time, too
        for number, entry in enumerate(entries):
            names = [name for name in entry if name != COUNT]
            total += math.prod(len(entry[name]) for name in names)
            if total > MOST_PROBLEMS:
                raise self._fault((op.name, number), f"more than {MOST_PROBLEMS} problems", "list fewer values")
            for values in itertools.product(*(entry[name] for name in names)):
                try:
                    problem = op.problem_of(dict(zip(names, values, strict=True)))
                    found[problem] = found.get(problem, 0) + entry.get(COUNT, 0)
                except RegistryError as refused:
                    raise self._fault((op.name, number), refused.message, refused.hint) from None
        return found

    def _invalid(self, op: Op, invalid: ValidationError) -> ShapesFileError:
        fault = min(invalid.errors(include_url=False), key=lambda error: self._document.line((op.name, *error["loc"])))
        message, hint = _explained(op, fault)
        return self._fault((op.name, *fault["loc"]), message, hint)


def _entries_of(op: Op) -> TypeAdapter[list[dict[str, Any]]]:
    """Validates an op's list of entries; every value of a dimension becomes a list."""
    fields: dict[str, Any] = {name: _values_of(op, name) for name in sorted(op.static | op.dynamic)}
    fields |= {name: cast("Any", NotRequired)[fields[name]] for name in op.distributions}
    fields[COUNT] = cast("Any", NotRequired)[Annotated[int, PlainValidator(_count)]]
    # a TypedDict, because a model's field could not be called `copy`
    entry: Any = with_config(ConfigDict(extra="forbid"))(cast("Any", TypedDict)("entry", fields))
    entries: Any = Annotated[list[entry], Field(min_length=1)]
    return TypeAdapter(entries)


def _values_of(op: Op, name: str) -> object:
    value: Any = Annotated[Any, PlainValidator(partial(_value, op, name))]
    as_list = BeforeValidator(lambda given: given if isinstance(given, list) else [given])
    return Annotated[list[value], Field(min_length=1), as_list]


def _value(op: Op, name: str, value: object) -> object:
    """One value of one dimension, or ValueError with ``got ...; expected ...``."""
    if values := {**op.choices, **op.distributions}.get(name):
        try:
            check_choice(op.name, name, value, values)
        except InvalidArgumentError as fault:
            expected = f"expected {' or '.join(map(_written, values))}"
            raise ValueError(f"got {_shown(value)}; {', '.join(filter(None, (expected, fault.hint)))}") from None
        return value
    expected = _expected(op, name)
    if not _ACCEPTS[expected](value):
        raise ValueError(f"got {_shown(value)}; expected {expected}")
    return value


def _count(value: object) -> object:
    if not _is_positive(value):
        raise ValueError(f"got {_shown(value)}; expected one positive integer: how often a program calls each problem")
    return value


def _expected(op: Op, name: str) -> str:
    if name == "dtype":
        return _DTYPE
    if name in op.dynamic:
        return _NUMBER if name in op.integers else _SIZE
    kinds = {parameter.name: parameter.kind for parameter in op.parsed.parameters}
    # a static dimension that no argument is named after may be a size (cols) or a flag (symmetric)
    return {"str": _TEXT, "bool": _FLAG, "int": _SIZE}.get(kinds.get(name, ""), _SIZE_OR_FLAG)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST


def _is_positive(value: object) -> bool:
    return _is_integer(value) and cast("int", value) >= 1


def _is_dtype(value: object) -> bool:
    """Whether ``value`` names a dtype that an op may be tuned for: a floating one, int8 or uint8."""
    dtype = getattr(torch, value, None) if isinstance(value, str) else None
    return isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype in {torch.int8, torch.uint8})


def _written(value: object) -> str:
    """A choice as YAML writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


_DTYPE, _TEXT, _FLAG = "a dtype, e.g. bfloat16", "text", "true or false"
_NUMBER, _SIZE, _SIZE_OR_FLAG = "an integer", "a positive integer", "a positive integer, true or false"
_ACCEPTS: Mapping[str, Callable[[object], bool]] = {
    _DTYPE: _is_dtype,
    _TEXT: lambda value: isinstance(value, str) and value != "",
    _FLAG: lambda value: isinstance(value, bool),
    _NUMBER: _is_integer,
    _SIZE: _is_positive,
    _SIZE_OR_FLAG: lambda value: isinstance(value, bool) or _is_positive(value),
}


def _explained(op: Op, fault: ErrorDetails) -> tuple[str, str]:
    dims = sorted(op.static | op.dynamic)
    last = fault["loc"][-1] if fault["loc"] else ""
    match fault["type"]:
        case "missing":
            return f"{last} is missing", f"{op.name} has the dimensions {', '.join(dims)}"
        case "extra_forbidden":
            unknown = UnknownNameError(f"dimension of {op.name}", str(last), dims)
            return unknown.message, unknown.hint
        case "value_error":
            message, _, hint = str(fault["ctx"]["error"]).partition("; ")
            return message, hint
        case "too_short":
            return "an empty list", "expected at least one value" if fault["loc"] else "expected an entry"
        case "list_type":
            return f"got {_shown(fault['input'])}", "expected a list of entries, e.g. - {" + ": ..., ".join(
                dims
            ) + ": ...}"
        case _:
            return f"got {_shown(fault['input'])}", f"expected a mapping of the dimensions {', '.join(dims)}"


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, int) and value.bit_length() > _MOST_BITS_SHOWN:
        return f"a number of {value.bit_length()} bits"
    return f"a {_kind(value)}" if isinstance(value, dict | list) else repr(value)[:80]


def _kind(value: object) -> str:
    if isinstance(value, dict):
        return "mapping"
    return "list" if isinstance(value, list) else f"single value ({_shown(value):.60})"
