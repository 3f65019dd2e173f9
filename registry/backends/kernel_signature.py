"""A check, before compiling, of a launch's arguments against the parameters that the kernel's C++ text declares.

What the text does not tell (a macro in the list, an alias, an overload, a vector type) is left to the compiler.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, cast

import torch

from ..artifact import Signature
from ..author_code import where_written
from ..errors import MisnamedError
from ..implementation import Implementation, Launch
from ..problem import TensorSpec, dtype_name
from .launch_checks import argument_of

Language = Literal["CUDA", "C++"]
_Kind = torch.dtype | type | None

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_QUALIFIER = re.compile(r"\b(?:const|volatile|__restrict__|__restrict|restrict|__grid_constant__|signed|std::)\b|\*|&")
_FUNCTION = {"CUDA": r"__global__[^;{{}}()]*(?:\([^()]*\)[^;{{}}()]*)*\b({})\s*\(", "C++": r"\bvoid\s+({})\s*\("}
_COMMA = re.compile(r",(?![^<>]*>)")
_DTYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "bool": torch.bool,
    "int8_t": torch.int8,
    **dict.fromkeys(("half", "__half"), torch.float16),
    **dict.fromkeys(("__nv_bfloat16", "nv_bfloat16"), torch.bfloat16),
    **dict.fromkeys(("short", "short int", "int16_t"), torch.int16),
    **dict.fromkeys(("int", "int32_t"), torch.int32),
    **dict.fromkeys(("long", "long int", "long long", "long long int", "int64_t"), torch.int64),
    **dict.fromkeys(("unsigned char", "uint8_t"), torch.uint8),
    **dict.fromkeys(("unsigned short", "unsigned short int", "uint16_t"), torch.uint16),
    **dict.fromkeys(("unsigned", "unsigned int", "uint32_t"), torch.uint32),
    **dict.fromkeys(("unsigned long", "unsigned long int", "size_t"), torch.uint64),
    **dict.fromkeys(("unsigned long long", "unsigned long long int", "uint64_t"), torch.uint64),
}
_BITS = {torch.bool, torch.uint8, torch.uint32, torch.uint64}
"""Parameter types through which a kernel may read a tensor of any dtype: bytes, and words that hold several numbers."""
_PASSED = {int: ("long long", 8), float: ("float", 4), bool: ("bool", 1)}


@dataclass(frozen=True)
class _Parameter:
    """One parameter: its name, the type without qualifiers ("" if unknown), whether it is a pointer."""

    name: str
    type: str
    pointer: bool


@dataclass(frozen=True)
class _Declared:
    """A kernel's parameters and the line where they begin; ``others``: the text's kernels if it lacks this one."""

    parameters: tuple[_Parameter, ...] = ()
    line: int = 0
    others: tuple[str, ...] = ()


def check_kernel(implementation: Implementation, launch: Launch, signature: Signature, language: Language) -> None:
    """Raise InvalidDefinitionError if a launch's arguments do not fit the parameters in the kernel's text."""
    if not signature.arguments.values:
        return  # the caller wants the variants of a problem without arguments
    kernel, title = launch.kernel, f"kernel {launch.kernel.name}"
    given = tuple(_kind(value, launch, title, signature) for value in launch.args)
    macros = tuple((name, value) for name, value in launch.constants.items() if isinstance(value, str))
    found = _compared(kernel.source, kernel.name, macros, given, language)
    if found is None:
        return
    declared, at, text = found
    if declared.others:
        context = f"of the kernel text in the Launch at {launch.place}"
        raise MisnamedError("function", kernel.name, declared.others, context)
    place = where_written(kernel.source, declared.line, [sys.modules[type(implementation).__module__]])
    shown = f"{launch.args[at]!r} is " if at >= 0 else ""
    names = ", ".join(parameter.name for parameter in declared.parameters)
    hint = f"expected args=(...) with a name or a number for each of {names}, in this order"
    if at >= 0:
        hint = _remedy(launch.args[at], given[at], declared.parameters[at])
    raise launch.fault(f"{title}{place and f' ({place})'}: {shown}{text}", hint)


def _remedy(argument: Any, kind: _Kind, parameter: _Parameter) -> str:
    """What to write where an argument does not fit a parameter; "" where that is not known."""
    declared = _DTYPES.get(parameter.type)
    if isinstance(kind, type) == parameter.pointer:
        given = "the name of a tensor" if parameter.pointer else "a number"
        return f"args are in the kernel's order: give {given} in this place, or declare the parameter otherwise"
    if not isinstance(kind, type):
        return "declare the parameter by the dtype, e.g. as a macro of constants; or refuse the dtype in unsupported()"
    if kind not in _PASSED or declared is None:
        return ""
    if (kind is float) == declared.is_floating_point:
        return f"declare the parameter as {_PASSED[kind][0]} in the kernel"
    wanted = "float" if declared.is_floating_point else "int"
    if not isinstance(argument, str):
        return f"give {wanted}(...)"
    return f"declare {argument} as {wanted} in the op's schema: a Scalar is an int or a float, as the call gives it"


def _kind(argument: Any, launch: Launch, title: str, signature: Signature) -> _Kind:
    value = argument_of(launch, lambda: title, argument, signature).value if isinstance(argument, str) else argument
    if value is None:
        return None
    return value.dtype if isinstance(value, TensorSpec) else type(value)


@lru_cache(maxsize=4096)
def _compared(
    source: str, name: str, macros: tuple[tuple[str, str], ...], given: tuple[_Kind, ...], language: Language
) -> tuple[_Declared, int, str] | None:
    """(declaration, index of the first argument that does not fit or -1 for a wrong number, why); None if all fit."""
    declared = _declared(source, name, macros, language)
    if declared is None:
        return None
    if declared.others or len(declared.parameters) != len(given):
        names = ", ".join(parameter.name for parameter in declared.parameters)
        return (
            declared,
            -1,
            f"it takes {len(declared.parameters)} arguments ({names}), but the launch gives {len(given)}",
        )
    for place, (parameter, kind) in enumerate(zip(declared.parameters, given, strict=True)):
        if text := _mismatch(parameter, kind, language):
            shown = f"{parameter.type or 'of an unknown type'}{'*' * parameter.pointer}"
            return declared, place, f"{text}, but the parameter {parameter.name} is {shown}"
    return None


def _mismatch(parameter: _Parameter, kind: _Kind, language: Language) -> str:
    declared = _DTYPES.get(parameter.type)
    if not isinstance(kind, type):
        if not parameter.pointer:
            return "a tensor" if declared else ""
        readable = kind is None or declared is None or _readable(kind, declared)
        return "" if readable else f"a tensor of {dtype_name(cast('torch.dtype', kind))}"
    if kind not in _PASSED or declared is None or parameter.pointer:
        return "a number" if kind in _PASSED and parameter.pointer else ""
    passed, size = _PASSED[kind]
    if (kind is float) != declared.is_floating_point:
        return f"a number of type {kind.__name__}"
    return f"passed as a {passed}" if language == "CUDA" and size != declared.itemsize else ""


def _readable(found: torch.dtype, expected: torch.dtype) -> bool:
    """True if a kernel may read a tensor of dtype ``found`` as ``expected``: equal, packed bytes, or numbers' bits."""
    if found in {expected, torch.uint8} or expected in _BITS:
        return True
    bits = expected is torch.uint16 or (found.is_floating_point and not expected.is_floating_point)
    return bits and found.itemsize == expected.itemsize


@lru_cache(maxsize=512)
def _declared(source: str, name: str, macros: tuple[tuple[str, str], ...], language: Language) -> _Declared | None:
    text = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), source)
    base, _, template = name.partition("<")
    base = base.strip().rpartition("::")[2]
    found = list(re.finditer(_FUNCTION[language].format(re.escape(base)), text))
    if not found:
        others = tuple(re.findall(_FUNCTION[language].format(r"\w+"), text))
        known = re.search(rf"\b{re.escape(base)}\b", text) or "##" in text or not others
        return None if known else _Declared(others=others)
    if len(found) > 1:
        return None
    (match,) = found
    types = {**dict(macros), **_template_types(text[: match.start()], template)}
    given, closed, _ = text[match.end() :].partition(")")
    parameters = _parameters(given, types) if closed else None
    return None if parameters is None else _Declared(parameters, text.count("\n", 0, match.start()) + 1)


def _parameters(text: str, types: Mapping[str, str]) -> tuple[_Parameter, ...] | None:
    if re.search(r"[#(\[]|\.\.\.", text):
        return None
    found = []
    for part in _COMMA.split(text) if text.strip() not in {"", "void"} else []:
        declared = re.fullmatch(r"(.*[\s*&>])(\w+)", part.partition("=")[0].strip(), re.DOTALL)
        if declared is None:
            return None
        found.append(_Parameter(declared.group(2), _type(declared.group(1), types), declared.group(1).count("*") == 1))
    return tuple(found)


def _type(declared: str, types: Mapping[str, str]) -> str:
    """The type without qualifiers, with template parameters and macros replaced; "" if unknown."""
    name = " ".join(_QUALIFIER.sub(" ", declared).split())
    for _ in range(4):
        name = types.get(name, name)
    return name if name in _DTYPES else ""


def _template_types(before: str, given: str) -> dict[str, str]:
    """The values of template parameters by name, from an instantiation such as ``row<float, 4>``."""
    header = re.search(r"template\s*<([^{};]*)>\s*[\w\s]*\Z", before)
    if header is None or not given:
        return {}
    names = [part.partition("=")[0].split()[-1:] for part in _COMMA.split(header.group(1))]
    values = _COMMA.split(given.rpartition(">")[0])
    return {name[0]: value.strip() for name, value in zip(names, values, strict=False) if name}
