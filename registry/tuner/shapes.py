"""The shapes file: which problems to tune, as YAML. The grammar is in docs/shapes.md."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, cast

import torch
import yaml
from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from ..contract import Op
from ..errors import RegistryError, ShapesFileError, UnknownNameError
from ..problem import Problem

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MOST_PROBLEMS = 100_000
"""A file that stands for more is a slip: tuning them would take days."""

_LARGEST = 2**63 - 1
_DEEPEST = 8
_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")

Place = tuple[Hashable, ...]


class Ops(Protocol):
    """What is needed of a catalog."""

    def ops(self) -> Mapping[str, Op]:
        """Every op by name."""


def load_shapes(path: str | Path, catalog: Ops, ops: Iterable[str] = ()) -> dict[str, list[Problem]]:
    """The problems that a shapes file lists, by op, without duplicates, in the file's order.

    ``ops`` keeps only those; each must be in the file. Raises ShapesFileError naming file, line, key and what was
    expected, and UnknownNameError for an op in ``ops`` that nobody defines.
    """
    known = catalog.ops()
    wanted = list(dict.fromkeys(ops))
    for name in wanted:
        if name not in known:
            raise UnknownNameError("op", name, known)
    problems = _File(Path(path)).problems(known)
    for name in wanted:
        if name not in problems:
            raise ShapesFileError(f"{path}: no shapes for {name}", hint=f"the file has: {', '.join(problems)}")
    return {name: found for name, found in problems.items() if not wanted or name in wanted}


class _File:
    """One file being read: its data, and the line of each place in it, for the messages."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[Place, int] = {}
        self.data = self._data(self._text())

    def problems(self, known: Mapping[str, Op]) -> dict[str, list[Problem]]:
        if self.data is None:
            raise self.fault((), "the file is empty", "expected an op with a list of entries, see docs/shapes.md")
        if not isinstance(self.data, dict):
            raise self.fault((), f"got a {_kind(self.data)}", "expected a mapping from ops to lists of entries")
        for name in self.data:
            if name not in known:
                unknown = UnknownNameError("op", str(name), known)
                raise self.fault((name,), unknown.message, unknown.hint)
        return {name: self._of(known[name], entries) for name, entries in self.data.items()}

    def _of(self, op: Op, entries: Any) -> list[Problem]:
        try:
            checked: list[dict[str, list[Any]]] = _entries_of(op).validate_python(entries)
        except ValidationError as fault:
            raise self._invalid(op, fault) from None
        found: dict[Problem, None] = {}
        for number, (entry, written) in enumerate(zip(checked, entries, strict=True)):
            names = list(written)  # the order of the file, which the validated entry has lost
            if math.prod(map(len, entry.values())) + len(found) > MOST_PROBLEMS:
                raise self.fault((op.name, number), f"more than {MOST_PROBLEMS} problems", "list fewer values")
            for values in itertools.product(*(entry[name] for name in names)):
                try:
                    found[op.problem_of(dict(zip(names, values, strict=True)))] = None
                except RegistryError as refused:
                    raise self.fault((op.name, number), refused.message, refused.hint) from None
        return list(found)

    def _invalid(self, op: Op, invalid: ValidationError) -> ShapesFileError:
        fault = min(invalid.errors(include_url=False), key=lambda error: self._line((op.name, *error["loc"])))
        message, hint = _explained(op, fault)
        return self.fault((op.name, *fault["loc"]), message, hint)

    def _written(self, place: Place) -> Place:
        """The innermost place around this one that stands in the file: a single value has no index there."""
        while place and place not in self.lines:
            place = place[:-1]
        return place

    def _line(self, place: Place) -> int:
        return self.lines.get(self._written(place), 1)

    def fault(self, place: Place, message: str, hint: str) -> ShapesFileError:
        """``FILE, line N, KEY: MESSAGE`` with what was expected as the hint."""
        key = ".".join(f"[{part}]" if isinstance(part, int) else str(part) for part in self._written(place)).replace(
            ".[", "["
        )
        where = f"{self.path}, line {self._line(place)}" + (f", {key}" if key else "")
        return ShapesFileError(f"{where}: {message}", hint=hint)

    def _text(self) -> str:
        try:
            return self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ShapesFileError(f"{self.path}: no such file", hint="expected a YAML file of shapes") from None
        except UnicodeDecodeError as fault:
            raise ShapesFileError(f"{self.path}: not UTF-8 text (byte {fault.start})", hint="expected YAML") from None
        except OSError as fault:
            raise ShapesFileError(f"{self.path}: {fault.strerror}", hint="expected a readable YAML file") from None

    def _data(self, text: str) -> object:
        try:
            loader = yaml.SafeLoader(text)
            node = loader.get_single_node()
            return None if node is None else self._plain(loader, node, (), ())
        except yaml.MarkedYAMLError as fault:
            line = fault.problem_mark.line + 1 if fault.problem_mark else 1
            problem = " ".join(part for part in (fault.context, fault.problem) if part)
            raise ShapesFileError(f"{self.path}, line {line}: not YAML: {problem}", hint="see docs/shapes.md") from None
        except (yaml.YAMLError, ValueError) as fault:
            shown = str(fault).splitlines()[0]
            raise ShapesFileError(f"{self.path}: not YAML: {shown}", hint="see docs/shapes.md") from None

    def _plain(self, loader: yaml.SafeLoader, node: yaml.Node, place: Place, above: tuple[yaml.Node, ...]) -> object:
        """The node's value; remembers its line, refuses repeated keys and aliases of a node within itself."""
        self.lines.setdefault(place, node.start_mark.line + 1)
        if any(node is other for other in above):
            raise self.fault(place, "an alias refers to what it stands in", "write the values out")
        if len(above) > _DEEPEST:
            raise self.fault(place, "nested too deeply", "expected op: [{dimension: [value, ...]}, ...]")
        if isinstance(node, yaml.CollectionNode) and node.tag not in _PLAIN_TAGS:
            raise self.fault(place, f"the tag {node.tag!r} has no meaning here", "write the values without it")
        above = (*above, node)
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(loader, item, (*place, n), above) for n, item in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            return loader.construct_object(node)
        found: dict[object, object] = {}
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise self.fault(
                    (*place, str(key)), f"{key!r} is not a name", "expected the name of an op or dimension"
                )
            inner = (*place, key)
            if key in found:
                raise self.fault(
                    place,
                    f"{key} stands here twice, on line {self.lines[inner]} and line {key_node.start_mark.line + 1}",
                    "join the two lists",
                )
            self.lines[inner] = key_node.start_mark.line + 1
            found[key] = self._plain(loader, value_node, inner, above)
        return found


def _entries_of(op: Op) -> TypeAdapter[list[dict[str, list[Any]]]]:
    """Validates an op's list of entries; every value becomes a list."""
    fields = {name: _values_of(op, name) for name in sorted(op.static | op.dynamic)}
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
    expected = _expected(op, name)
    if not _ACCEPTS[expected](value):
        raise ValueError(f"got {_shown(value)}; expected {expected}")
    return value


def _expected(op: Op, name: str) -> str:
    if name == "dtype":
        return _DTYPE
    if name in op.dynamic:
        return _SIZE
    kinds = {parameter.name: parameter.kind for parameter in op.parsed.parameters}
    # a static dimension that no argument is named after may be a size (cols) or a flag (symmetric)
    return {"str": _TEXT, "bool": _FLAG, "int": _SIZE}.get(kinds.get(name, ""), _SIZE_OR_FLAG)


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _LARGEST


def _is_float_dtype(value: object) -> bool:
    dtype = getattr(torch, value, None) if isinstance(value, str) else None
    return isinstance(dtype, torch.dtype) and dtype.is_floating_point


_DTYPE, _TEXT, _FLAG = "a dtype, e.g. bfloat16", "text", "true or false"
_SIZE, _SIZE_OR_FLAG = "a positive integer", "a positive integer, true or false"
_ACCEPTS: Mapping[str, Callable[[object], bool]] = {
    _DTYPE: _is_float_dtype,
    _TEXT: lambda value: isinstance(value, str) and value != "",
    _FLAG: lambda value: isinstance(value, bool),
    _SIZE: _is_positive,
    _SIZE_OR_FLAG: lambda value: isinstance(value, bool) or _is_positive(value),
}


def _explained(op: Op, fault: ErrorDetails) -> tuple[str, str]:
    """Message and hint for one of pydantic's faults."""
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
    return f"a {_kind(value)}" if isinstance(value, dict | list) else repr(value)[:80]


def _kind(value: object) -> str:
    if isinstance(value, dict):
        return "mapping"
    return "list" if isinstance(value, list) else f"single value ({value!r:.60})"


def all_problems(shapes: Mapping[str, list[Problem]]) -> Iterator[Problem]:
    """The problems of every op, in order."""
    return itertools.chain.from_iterable(shapes.values())
