"""A torch-style schema: names, types and defaults of an op's arguments, and the conversion of a call's values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch.compiler import is_dynamo_compiling

from ..errors import ArgumentTypeError, InvalidDefinitionError
from ..tracing import refuse

_REQUIRED: Any = object()

# bound at import, so that a candidate's later patch is not called
_detached: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.detach

_DENSE = (torch.strided, torch.jagged)
"""Layouts that are accepted: jagged tensors are a subclass whose calls torch's own operations answer."""


_PYTHON: Mapping[str, tuple[type, ...]] = {
    "Tensor": (torch.Tensor,),
    "Tensor[]": (list, tuple),
    "int": (int,),
    "int[]": (list, tuple, torch.Size),
    "float": (float, int),
    "Scalar": (float, int, bool),
    "bool": (bool,),
    "str": (str,),
}
"""The Python types whose values a kind accepts; a bool is no int."""
_WITH_ARTICLE = {kind: f"{'an' if kind.startswith('int') else 'a'} {kind}" for kind in _PYTHON}
_SYMBOLIC: Mapping[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}

_ALLOWED = "an argument is a Tensor, Tensor[], int, int[], float, Scalar, bool or str; all but a list may be optional"
_NO_DICT = "pass each of its values by a name of its own"
_IN_TEXT: Mapping[str, str] = {
    r"\bDict\b(?=.*->)": _NO_DICT,
    r"\bSymInt\b": "an op is called with plain integers: write int",
    r"\.\.\.": "a launch names its arguments: write each of them, or Tensor[] for many tensors",
    r"\b(int|Tensor)\[\d+\]": "lists have any length: write int[], and let problem() refuse other lengths",
}
"""Reasons to refuse a schema's text, by pattern: torch's parser would read each as something else."""
_BY_KIND: Mapping[str, str] = {
    "Tensor?[]": "pass the tensors that are there, and an int[] that tells which",
    "Tensor[]?": "an empty list takes the place of an absent one",
    "int[]?": "an empty list takes the place of an absent one",
    "ScalarType": "pass the dtype's name as a str, which can be a dimension and be stored",
    "Layout": "pass its name as a str, which can be a dimension and be stored",
    "MemoryFormat": "strides tell it",
    "Device": "the arguments' device is the op's",
    "Generator": "pass a seed as an int, or random numbers as a Tensor: equal arguments must give equal results",
    "Dict": _NO_DICT,
}


def tensors_in(values: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors among a call's values, those of lists too, in order."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [one for one in value if isinstance(one, torch.Tensor)]
    return found


def with_tensors(values: Sequence[Any], change: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, ...]:
    """A call's values with ``change`` applied to every tensor, those of lists too."""

    def changed(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return change(value)
        return tuple(map(changed, value)) if isinstance(value, list | tuple) else value

    return tuple(map(changed, values))


def handed_out(values: Sequence[Any]) -> tuple[Any, ...]:
    """A call's values with other objects for its tensors, of the same memory and with the same version counters.

    What is done to them, such as pointing one to other memory or hiding its methods, leaves the caller's as they are.
    """
    return with_tensors(values, _detached)


Kind = tuple[str, str]
"""The name of a value's type (``Tensor`` for any tensor), and a text that shows the value."""


def kind_of(value: Any) -> Kind:
    """The kind of a value, as far as torch.compile knows it while it traces, where numbers may be symbols."""
    if isinstance(value, torch.Tensor):
        return "Tensor", "a Tensor"
    name = _type_name(value)
    return name, repr(value) if value is None or isinstance(value, str | bool) else f"a {name}"


def _type_name(value: Any) -> str:
    if is_dynamo_compiling():
        # type(value) would be a guard for each attribute of a module, and fails for a constant of the trace
        if value is None:
            return "NoneType"
        for kind in (bool, int, float, str):
            if isinstance(value, kind):
                return kind.__name__
    return type(value).__name__


@dataclass(frozen=True)
class Parameter:
    """One argument: ``kind`` is the name of its type in torch's schema language, e.g. ``Tensor`` or ``int[]``."""

    name: str
    kind: str
    optional: bool
    default: Any
    keyword_only: bool
    mutated: bool

    @property
    def required(self) -> bool:
        """True if the parameter has no default."""
        return self.default is _REQUIRED

    @property
    def holds_tensors(self) -> bool:
        """True if the parameter is a tensor or a list of tensors."""
        return self.kind in {"Tensor", "Tensor[]"}

    def coerce(self, op: str, value: Any) -> Any:
        """``value`` as this parameter's type, or ArgumentTypeError: 1 becomes 1.0 for a float, a list a tuple."""
        if value is None and self.optional:
            return None
        if self.kind.endswith("[]") and type(value) in _PYTHON[self.kind]:
            one = Parameter(self.name, self.kind.removesuffix("[]"), False, _REQUIRED, False, False)
            return tuple(one._coerced(f"{op}: {self.name}[{place}]", each) for place, each in enumerate(value))
        return self._coerced(f"{op}: {self.name}", value)

    def check_kind(self, op: str, kind: Kind) -> None:
        """Raise ArgumentTypeError unless ``coerce`` would accept a value of that kind."""
        name, shown = kind
        accepted = {kind.__name__ for kind in _PYTHON[self.kind]}
        if name not in accepted and not (self.optional and name == "NoneType"):
            refuse(f"{op}: {self.name} must be {_WITH_ARTICLE[self.kind]}, got {shown[:80]}", kind=ArgumentTypeError)

    def _coerced(self, where: str, value: Any) -> Any:
        if self.kind == "Tensor":
            if isinstance(value, torch.Tensor):
                check_dense(where, value)
                return value
        elif self.kind == "float" and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        elif type(value) in _PYTHON[self.kind] and not self.kind.endswith("[]"):
            return value
        elif self.kind == "Scalar" and type(value) in _SYMBOLIC:
            # only a Scalar is traced as a symbol: its value becomes a guard of the compiled code
            return _SYMBOLIC[type(value)](value)
        shown = f"a {type(value).__name__}" if isinstance(value, torch.Tensor) else repr(value)
        return refuse(f"{where} must be {_WITH_ARTICLE[self.kind]}, got {shown[:80]}", kind=ArgumentTypeError)


@dataclass(frozen=True)
class Schema:
    """A parsed schema: ``softmax(Tensor x, int dim=-1) -> Tensor y``. Outputs must be named: launches refer to them.

    ``increment(Tensor(a!) x) -> ()`` has no outputs.
    """

    text: str
    name: str
    parameters: tuple[Parameter, ...]
    outputs: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Schema:
        """Parse torch's schema language; raises InvalidDefinitionError with the reason and an example."""
        if not isinstance(text, str):
            raise InvalidDefinitionError(f"schema {text!r:.80} is no text", hint=_ALLOWED)
        for pattern, reason in _IN_TEXT.items():
            if found := re.search(pattern, text):
                raise InvalidDefinitionError(f"schema {text!r}: {found[0]} is not possible: {reason}", hint=_ALLOWED)
        try:
            parsed = torch._C.parse_schema(text)
        except RuntimeError as fault:
            raise _not_parsed(text, str(fault)) from None
        except IndexError:  # of C++'s stod or stoll
            raise InvalidDefinitionError(
                f"schema {text!r}: a default does not fit in 64 bits",
                hint="write a number that an int64 or a float64 holds, or make it an argument without a default",
            ) from None
        if parsed.overload_name:
            raise InvalidDefinitionError(
                f"schema {text!r}: {parsed.name}.{parsed.overload_name} names an overload, and an op has none",
                hint=f"write {parsed.name}(...); another signature is an op of another name",
            )
        outputs = tuple(_output(text, output) for output in parsed.returns)
        schema = cls(text, parsed.name, tuple(_parameter(text, argument) for argument in parsed.arguments), outputs)
        _check_names(text, schema.names, outputs)
        _check_aliases(text, parsed.arguments)
        if not schema.results:
            raise InvalidDefinitionError(
                f"schema {text!r}: it returns nothing and writes to nothing",
                hint="write '-> Tensor y', or Tensor(a!) for an argument that is written to",
            )
        return schema

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)

    @cached_property
    def results(self) -> tuple[str, ...]:
        """Names of a call's results: the outputs, then the arguments that it mutates."""
        return (*self.outputs, *(parameter.name for parameter in self.parameters if parameter.mutated))

    @property
    def mutates(self) -> bool:
        """True if the op writes to one of its arguments."""
        return any(parameter.mutated for parameter in self.parameters)

    def bind(self, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
        """A call's values in the schema's order, defaults filled in and attributes coerced.

        Raises ArgumentTypeError for too many, missing, repeated, unknown or mistyped arguments, and
        InvalidArgumentError for a tensor that is not dense.
        """
        given = by_name(self.parameters, args, attributes, self._refuse)
        return tuple(
            parameter.coerce(self.name, given.get(parameter.name, parameter.default)) for parameter in self.parameters
        )

    def coerced(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """``values``, one for each parameter in order (keyword-only ones too), coerced as ``bind`` does."""
        if len(values) != len(self.parameters):
            self._refuse(f"{len(values)} values given, expected {len(self.parameters)}")
        return tuple(
            parameter.coerce(self.name, value) for parameter, value in zip(self.parameters, values, strict=True)
        )

    def check_kinds(self, args: Sequence[Kind], attributes: Mapping[str, Kind]) -> None:
        """Raise ArgumentTypeError as ``bind`` would for a call, given the kinds of its values only."""
        given = by_name(self.parameters, args, attributes, self._refuse)
        for parameter in self.parameters:
            if parameter.name in given:
                parameter.check_kind(self.name, given[parameter.name])

    def _refuse(self, message: str) -> NoReturn:
        refuse(f"{self.name}: {message}", hint=f"schema: {self.text}", kind=ArgumentTypeError)


def by_name(
    parameters: Sequence[Parameter], args: Sequence[Any], attributes: Mapping[str, Any], complain: Callable[[str], None]
) -> dict[str, Any]:
    """A call's values by parameter name. Calls ``complain`` for one too many, missing, repeated or unknown."""
    positional = [parameter for parameter in parameters if not parameter.keyword_only]
    if len(args) > len(positional):
        complain(f"{len(args)} positional arguments given, at most {len(positional)} expected")
    given = {parameter.name: value for parameter, value in zip(positional, args, strict=False)}
    for name, value in attributes.items():
        if name in given:
            complain(f"{name} was given twice")
        if name not in [parameter.name for parameter in parameters]:
            complain(f"no argument {name!r}")
        given[name] = value
    missing = [parameter.name for parameter in parameters if parameter.required and parameter.name not in given]
    if missing:
        complain(f"missing {', '.join(missing)}")
    return given


def check_dense(what: str, tensor: torch.Tensor) -> None:
    """Raise InvalidArgumentError for a tensor that is not dense, e.g. a sparse or a quantised one."""
    kind, remedy = "", "to_dense()"
    if tensor.layout not in _DENSE:
        kind = str(tensor.layout).removeprefix("torch.").removeprefix("_")
    elif tensor.is_nested and tensor.layout == torch.strided:
        kind, remedy = "nested", "to_padded_tensor(0.0)"
    elif tensor.is_quantized:
        kind, remedy = "quantized", "dequantize()"
    if kind:
        refuse(f"{what} is a {kind} tensor, expected a dense one", hint=f"convert it: .{remedy}")


def _not_parsed(text: str, told: str) -> InvalidDefinitionError:
    """The words of torch's parser, whose second line is the text and whose third points into it."""
    words = told.partition("\n")[0].removesuffix(" here:")
    pointer = next((line for line in told.splitlines() if line.endswith("<--- HERE")), "")
    place = pointer.index("~") if "~" in pointer else len(text)
    rest = text[place:]
    hint = f"expected e.g. 'softmax(Tensor x, int dim=-1) -> Tensor y'; {_ALLOWED}"
    # torch points behind a default that it cannot read, and at the beginning of a type
    if not words and (found := re.search(r"(\w+)\s*=\s*(\w+)\s*\Z", text[:place])):
        words, rest = f"{found[1]} has the default {found[2]}, which torch does not know", ""
        hint = "a default is a number, True, False, None of an optional argument, or a text in quotes"
    return InvalidDefinitionError(
        f"schema {text!r}: {words or 'a type that torch does not know'}{rest and f' at {rest!r}'}", hint=hint
    )


def _output(text: str, output: Any) -> str:
    """The name of an output, which must be a new tensor."""
    if not output.name and str(output.type) == "Tensor":
        raise InvalidDefinitionError(f"schema {text!r}: an output has no name", hint="write '-> Tensor y'")
    if output.alias_info is not None:
        raise InvalidDefinitionError(
            f"schema {text!r}: the output {output.name} shares memory with an argument, but the host allocates outputs",
            hint="leave it out: a caller has what is written to, Tensor(a!); write '-> ()' where nothing else is left",
        )
    if str(output.type) != "Tensor":
        raise InvalidDefinitionError(
            f"schema {text!r}: {f'the output {output.name}' if output.name else 'an output'} is of type {output.type},"
            " but the host allocates outputs from `fake`",
            hint="every output is a Tensor: write each one with a name of its own, '-> (Tensor y, Tensor lse)'",
        )
    return str(output.name)


def _check_names(text: str, arguments: Sequence[str], outputs: Sequence[str]) -> None:
    """Raise InvalidDefinitionError if two arguments or outputs have one name: launches refer to both by it."""
    for name in (name for name, count in Counter((*arguments, *outputs)).items() if count > 1):
        places = "an argument and an output" if name in arguments and name in outputs else "two outputs"
        places = "two arguments" if name not in outputs else places
        hint = "give each a name of its own"
        if places == "an argument and an output":
            hint = f"name the output otherwise; or, if {name} is written to, write Tensor(a!) {name} and leave it out"
        raise InvalidDefinitionError(f"schema {text!r}: {places} are named {name}", hint=hint)


def _check_aliases(text: str, arguments: Sequence[Any]) -> None:
    """Raise InvalidDefinitionError if what is written to may share memory with another argument."""
    holders: dict[str, list[Any]] = {}
    for argument in arguments:
        for letter in argument.alias_info.before_set if argument.alias_info is not None else ():
            holders.setdefault(str(letter), []).append(argument)
    for letter, sharing in sorted(holders.items()):
        if len(sharing) > 1 and any(argument.alias_info.is_write for argument in sharing):
            names = " and ".join(argument.name for argument in sharing)
            raise InvalidDefinitionError(
                f"schema {text!r}: {names} have one letter, {letter}, as if they shared memory, and one is written to",
                hint=f"give each argument that is written to a letter of its own: Tensor(a!) {sharing[0].name}, "
                f"Tensor(b!) {sharing[1].name}",
            )


def _as_written(kind: str) -> str:
    """A type that torch's parser has read, as a schema writes it: ``Tensor?[]`` for ``List[Optional[Tensor]]``."""
    for start, end in (("List[", "[]"), ("Optional[", "?")):
        if kind.startswith(start):
            return _as_written(kind.removeprefix(start).removesuffix("]")) + end
    return "Scalar" if kind == "number" else kind


def _parameter(text: str, argument: Any) -> Parameter:
    kind = _as_written(str(argument.real_type))
    optional = kind.endswith("?") and not kind.endswith("[]?")
    kind = kind.removesuffix("?") if optional else kind
    if kind not in _PYTHON:
        reason = next((reason for start, reason in _BY_KIND.items() if kind.startswith(start)), "")
        raise InvalidDefinitionError(
            f"schema {text!r}: {argument.name} is of type {kind}" + (f": {reason}" if reason else ""), hint=_ALLOWED
        )
    default = argument.default_value if argument.has_default_value() else _REQUIRED
    default = tuple(default) if isinstance(default, list) else default
    if default is None and not optional:
        raise InvalidDefinitionError(
            f"schema {text!r}: {argument.name} has the default None, which no {kind} is",
            hint=f"write {kind}? {argument.name}=None where it may be left out",
        )
    mutated = argument.alias_info is not None and argument.alias_info.is_write
    if mutated and (optional or kind == "Tensor[]"):
        raise InvalidDefinitionError(
            f"schema {text!r}: {argument.name} is mutated and {'optional' if optional else 'a list'}, so that the op's"
            " results would differ in number from call to call",
            hint="what is written to is a Tensor(a!) that must be given: make two ops of it, or name each tensor",
        )
    return Parameter(argument.name, kind, optional, default, argument.kwarg_only, mutated)
