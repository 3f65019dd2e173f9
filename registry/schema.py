"""A torch-style schema: names, types and defaults of an op's arguments, and what a call's values become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import torch

from .errors import ArgumentTypeError, InvalidDefinitionError
from .tracing import refuse

_REQUIRED: Any = object()

_DENSE = (torch.strided, torch.jagged)
"""Jagged tensors are a subclass with a behaviour of its own, which torch's operations know."""


Kind = tuple[str, str]
"""The name of a value's type, ``Tensor`` for any tensor, and how to show the value."""


def kind_of(value: Any) -> Kind:
    """What torch.compile knows of a value while it traces: numbers may be symbols there."""
    if isinstance(value, torch.Tensor):
        return "Tensor", "a Tensor"
    name = type(value).__name__
    return name, repr(value) if value is None or isinstance(value, str | bool) else f"a {name}"


@dataclass(frozen=True)
class Parameter:
    """One argument: ``kind`` is torch's name of its type (``Tensor``, ``int``, ``float``, ``bool``, ``str``)."""

    name: str
    kind: str
    optional: bool
    default: Any
    keyword_only: bool
    mutated: bool

    @property
    def required(self) -> bool:
        """Whether a call must give it."""
        return self.default is _REQUIRED

    def coerce(self, op: str, value: Any) -> Any:
        """``value`` as this parameter's type, or ArgumentTypeError. ``1`` becomes ``1.0`` for a float."""
        if value is None and self.optional:
            return None
        if self.kind == "Tensor":
            if isinstance(value, torch.Tensor):
                check_dense(f"{op}: {self.name}", value)
                return value
        elif self.kind == "float" and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        elif self._accepts(value):
            return value
        shown = f"a {type(value).__name__}" if isinstance(value, torch.Tensor) else repr(value)
        return refuse(f"{op}: {self.name} must be a {self.kind}, got {shown[:80]}", kind=ArgumentTypeError)

    def check_kind(self, op: str, kind: Kind) -> None:
        """Raise ArgumentTypeError unless ``coerce`` would accept a value of that kind."""
        name, shown = kind
        accepted = {self.kind, *(("int",) if self.kind == "float" else ()), *(("NoneType",) if self.optional else ())}
        if name not in accepted:
            refuse(f"{op}: {self.name} must be a {self.kind}, got {shown[:80]}", kind=ArgumentTypeError)

    def _accepts(self, value: Any) -> bool:
        """Whether ``value`` already is of this type; a bool is no int."""
        kinds = {"int": int, "bool": bool, "str": str}
        return self.kind in kinds and type(value) is kinds[self.kind]


@dataclass(frozen=True)
class Schema:
    """``softmax(Tensor x, int dim=-1) -> Tensor y``, parsed. Outputs must be named: launches refer to them.

    There are none in ``increment(Tensor(a!) x) -> ()``.
    """

    text: str
    name: str
    parameters: tuple[Parameter, ...]
    outputs: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Schema:
        """Parse torch's schema language; raises InvalidDefinitionError with torch's own words."""
        try:
            parsed = torch._C.parse_schema(text)
        except RuntimeError as fault:
            raise InvalidDefinitionError(f"schema {text!r}: {str(fault).splitlines()[0]}") from None
        outputs = tuple(output.name for output in parsed.returns)
        if any(not name for name in outputs):
            raise InvalidDefinitionError(f"schema {text!r}: an output has no name", hint="write '-> Tensor y'")
        schema = cls(text, parsed.name, tuple(_parameter(text, argument) for argument in parsed.arguments), outputs)
        if not schema.results:
            raise InvalidDefinitionError(
                f"schema {text!r}: it returns nothing and writes to nothing",
                hint="write '-> Tensor y', or Tensor(a!) for an argument that is written to",
            )
        return schema

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The parameters' names, in order."""
        return tuple(parameter.name for parameter in self.parameters)

    @cached_property
    def results(self) -> tuple[str, ...]:
        """Names of all that a call leaves to be judged: the outputs, then the arguments that it mutates."""
        return (*self.outputs, *(parameter.name for parameter in self.parameters if parameter.mutated))

    @property
    def mutates(self) -> bool:
        """Whether an argument is written to."""
        return any(parameter.mutated for parameter in self.parameters)

    def bind(self, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
        """A call's values in the schema's order, defaults filled in and attributes coerced.

        Raises ArgumentTypeError for too many, missing, repeated, unknown or mistyped arguments, and
        InvalidArgumentError for a tensor that is not dense.
        """
        given = self._by_name(args, attributes)
        return tuple(
            parameter.coerce(self.name, given.get(parameter.name, parameter.default)) for parameter in self.parameters
        )

    def check_kinds(self, args: Sequence[Kind], attributes: Mapping[str, Kind]) -> None:
        """Raise ArgumentTypeError as ``bind`` does, for a call of which only the kinds of its values are known."""
        given = self._by_name(args, attributes)
        for parameter in self.parameters:
            if parameter.name in given:
                parameter.check_kind(self.name, given[parameter.name])

    def _by_name(self, args: Sequence[Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
        positional = [parameter for parameter in self.parameters if not parameter.keyword_only]
        if len(args) > len(positional):
            self._refuse(f"{len(args)} positional arguments given, at most {len(positional)} expected")
        given = {parameter.name: value for parameter, value in zip(positional, args, strict=False)}
        for name, value in attributes.items():
            if name in given:
                self._refuse(f"{name} was given twice")
            if name not in self.names:
                self._refuse(f"no argument {name!r}")
            given[name] = value
        missing = [
            parameter.name for parameter in self.parameters if parameter.required and parameter.name not in given
        ]
        if missing:
            self._refuse(f"missing {', '.join(missing)}")
        return given

    def _refuse(self, message: str) -> NoReturn:
        refuse(f"{self.name}: {message}", hint=f"schema: {self.text}", kind=ArgumentTypeError)


def check_dense(what: str, tensor: torch.Tensor) -> None:
    """Raise InvalidArgumentError for a tensor whose elements do not simply lie in memory, one number each."""
    kind, remedy = "", "to_dense()"
    if tensor.layout not in _DENSE:
        kind = str(tensor.layout).removeprefix("torch.").removeprefix("_")
    elif tensor.is_nested and tensor.layout == torch.strided:
        kind, remedy = "nested", "to_padded_tensor(0.0)"
    elif tensor.is_quantized:
        kind, remedy = "quantized", "dequantize()"
    if kind:
        refuse(f"{what} is a {kind} tensor, expected a dense one", hint=f"convert it: .{remedy}")


def _parameter(text: str, argument: Any) -> Parameter:
    kind = str(argument.type)
    optional = kind.startswith("Optional[")
    kind = kind.removeprefix("Optional[").removesuffix("]") if optional else kind
    if kind not in {"Tensor", "int", "float", "bool", "str"}:
        raise InvalidDefinitionError(
            f"schema {text!r}: {argument.name} is a {kind}", hint="an argument is a Tensor, int, float, bool or str"
        )
    default = argument.default_value if argument.has_default_value() else _REQUIRED
    mutated = argument.alias_info is not None and argument.alias_info.is_write
    if mutated and optional:
        raise InvalidDefinitionError(
            f"schema {text!r}: {argument.name} is mutated and optional",
            hint="what is written to must be given: make two ops of it",
        )
    return Parameter(argument.name, kind, optional, default, argument.kwarg_only, mutated)
