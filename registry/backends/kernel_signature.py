"""A kernel's parameters as its C++ text declares them, held against the arguments of a launch before anything compiles.

What cannot be told from the text (a macro in the list, an alias, an overload, a vector type) is left to the compiler.
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
_POINTEES = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "__half": torch.float16,
    "__nv_bfloat16": torch.bfloat16,
    "nv_bfloat16": torch.bfloat16,
    "int": torch.int32,
    "int32_t": torch.int32,
    "long long": torch.int64,
    "int64_t": torch.int64,
    "short": torch.int16,
    "int16_t": torch.int16,
    "int8_t": torch.int8,
}
_INTEGERS = {"long long": 8, "int64_t": 8, "unsigned long long": 8, "uint64_t": 8, "size_t": 8, "long": 8, "int": 4}
_INTEGERS |= {"int32_t": 4, "unsigned": 4, "unsigned int": 4, "uint32_t": 4, "short": 2, "int16_t": 2, "bool": 1}
_FLOATS = {"float": 4, "double": 8, "half": 2, "__half": 2}
_PASSED = {"int": ("long long", 8), "float": ("float", 4), "bool": ("bool", 1)}


@dataclass(frozen=True)
class _Parameter:
    """One parameter: its name, the type without qualifiers ("" if unknown), whether it is a pointer."""

    name: str
    type: str
    pointer: bool


@dataclass(frozen=True)
class _Declared:
    """A kernel's parameters and the line of the text on which they begin; or the names that the text does declare."""

    parameters: tuple[_Parameter, ...] = ()
    line: int = 0
    others: tuple[str, ...] = ()


def check_kernel(implementation: Implementation, launch: Launch, signature: Signature, language: Language) -> None:
    """Raise InvalidDefinitionError where a launch gives a kernel other arguments than its text declares."""
    if not signature.arguments.values:
        return  # a caller that asks for the variants of a problem alone, which its arguments are no part of
    kernel, title = launch.kernel, f"kernel {launch.kernel.name}"
    given = tuple(_kind(value, launch, title, signature) for value in launch.args)
    macros = tuple((name, value) for name, value in launch.constants.items() if isinstance(value, str))
    found = _compared(kernel.source, kernel.name, macros, given, language)
    if found is None:
        return
    declared, fault = found
    if declared.others:
        context = f"of the kernel text in the Launch at {launch.place}"
        raise MisnamedError("function", kernel.name, declared.others, context)
    place = where_written(kernel.source, declared.line, [sys.modules[type(implementation).__module__]])
    at, text = fault
    shown = f"{launch.args[at]!r} is " if at >= 0 else ""
    raise launch.fault(f"{title}{place and f' ({place})'}: {shown}{text}")


def _kind(argument: Any, launch: Launch, title: str, signature: Signature) -> _Kind:
    value = argument_of(launch, title, argument, signature).value if isinstance(argument, str) else argument
    if value is None:
        return None
    return value.dtype if isinstance(value, TensorSpec) else type(value)


@lru_cache(maxsize=4096)
def _compared(
    source: str, name: str, macros: tuple[tuple[str, str], ...], given: tuple[_Kind, ...], language: Language
) -> tuple[_Declared, tuple[int, str]] | None:
    """What the text declares and the fault of the arguments given; None where there is no fault, or no telling."""
    declared = _declared(source, name, macros, language)
    if declared is None:
        return None
    fault = _fault(declared.parameters, given, language)
    return (declared, fault or (-1, "")) if fault or declared.others else None


def _fault(parameters: tuple[_Parameter, ...], given: tuple[_Kind, ...], language: Language) -> tuple[int, str] | None:
    """The argument that does not fit its parameter (-1: their number), and why."""
    if len(parameters) != len(given):
        names = ", ".join(parameter.name for parameter in parameters)
        return -1, f"it takes {len(parameters)} arguments ({names}), but the launch gives {len(given)}"
    for place, (parameter, kind) in enumerate(zip(parameters, given, strict=True)):
        if text := _mismatch(parameter, kind, language):
            return place, text
    return None


def _mismatch(parameter: _Parameter, kind: _Kind, language: Language) -> str:
    declared = f"the parameter {parameter.name} is {parameter.type or 'of an unknown type'}{'*' * parameter.pointer}"
    if not isinstance(kind, type):
        text = _tensor_mismatch(parameter, kind)
    elif parameter.pointer:
        text = "a number" if kind.__name__ in _PASSED else ""
    else:
        text = _number_mismatch(parameter.type, kind.__name__, language)
    return text and f"{text}, but {declared}"


def _tensor_mismatch(parameter: _Parameter, dtype: torch.dtype | None) -> str:
    if not parameter.pointer:
        return "a tensor" if parameter.type in _INTEGERS | _FLOATS else ""
    expected = _POINTEES.get(parameter.type)
    readable = expected is None or dtype is None or _readable(dtype, expected)
    return "" if readable else f"a tensor of {dtype_name(cast('torch.dtype', dtype))}"


def _number_mismatch(declared: str, kind: str, language: Language) -> str:
    if kind in _PASSED and declared in (_INTEGERS if kind == "float" else _FLOATS):
        return f"a number of type {kind}"
    size, (passed, needed) = (_INTEGERS | _FLOATS).get(declared), _PASSED.get(kind, ("", None))
    return f"passed as a {passed}" if language == "CUDA" and size and needed and size != needed else ""


def _readable(found: torch.dtype, expected: torch.dtype) -> bool:
    """Whether a kernel may mean to read a tensor so: as it is, packed bytes, or the bits of a number as an integer."""
    if found in {expected, torch.uint8}:
        return True
    return found.is_floating_point and not expected.is_floating_point and found.itemsize == expected.itemsize


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
    parameters = _parameters(text[match.end() :], types)
    return None if parameters is None else _Declared(parameters, text.count("\n", 0, match.start()) + 1)


def _parameters(rest: str, types: Mapping[str, str]) -> tuple[_Parameter, ...] | None:
    parts = _split(rest, ")")
    if parts is None or any("#" in part or "..." in part or "[" in part or "(" in part for part in parts):
        return None
    found = []
    for part in parts if parts != ["void"] else []:
        declared = re.fullmatch(r"(.*[\s*&>])(\w+)", part.partition("=")[0].strip(), re.DOTALL)
        if declared is None:
            return None
        found.append(_Parameter(declared.group(2), _type(declared.group(1), types), declared.group(1).count("*") == 1))
    return tuple(found)


def _type(declared: str, types: Mapping[str, str]) -> str:
    """The type without qualifiers, with template parameters and macros replaced; "" where it is none of those known."""
    name = " ".join(_QUALIFIER.sub(" ", declared).split())
    for _ in range(4):
        name = types.get(name, name)
    name = {"long long int": "long long", "long int": "long"}.get(name, name)
    return name if name in _POINTEES or name in _INTEGERS or name in _FLOATS else ""


def _template_types(before: str, given: str) -> dict[str, str]:
    """Template parameters by name, as an instantiation ``row<float, 4>`` gives them."""
    header = re.search(r"template\s*<([^{};]*)>\s*[\w\s]*\Z", before)
    values = _split(given, ">") if given else None
    if header is None or values is None:
        return {}
    names = [part.partition("=")[0].split()[-1:] for part in _split(header.group(1) + ">", ">") or ()]
    return {name[0]: value for name, value in zip(names, values, strict=False) if name}


def _split(text: str, end: str) -> list[str] | None:
    """The parts between commas up to the closing ``end``; None where it never comes."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        if letter == end and depth == 0:
            parts.append(text[start:place].strip())
            return parts if parts != [""] else []
        if letter == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
        depth += (letter in "([{<") - (letter in ")]}>")
    return None
