"""The Python code that an implementation runs without kernels of its own: its methods, and all that they reach."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from registry.implementation import Implementation, own_classes

_NAMES = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD"})


def reachable_code(implementation: Implementation) -> list[str]:
    """Instructions of the methods of the implementation's classes, and of functions and values that they name.

    Names are followed within the package that the implementation is in; others stand for themselves. Every method
    counts but those that decide whether and when it runs, ``unsupported`` and ``preference``.
    """
    package = type(implementation).__module__.partition(".")[0]
    seen: dict[object, str] = {}
    for kind in own_classes(implementation):
        for name, value in sorted(vars(kind).items()):
            if name in {"unsupported", "preference"} or name.startswith(("__", "_abc")):
                continue
            _follow(f"{kind.__qualname__}.{name}", value, package, seen)
    return sorted(seen.values())


def _follow(name: str, value: Any, package: str, seen: dict[object, str]) -> None:
    value = inspect.unwrap(getattr(value, "__func__", value)) if callable(value) else value
    if id(value) in seen:
        return
    if isinstance(value, FunctionType) and value.__module__.partition(".")[0] == package:
        seen[id(value)] = "\n  ".join([name, *_instructions(value.__code__)])
        for found, other in _named(value.__code__, value.__globals__, package):
            _follow(found, other, package, seen)
    elif isinstance(value, type) and value.__module__.partition(".")[0] == package:
        seen[id(value)] = f"{name}: {value.__qualname__} {getattr(value, '__annotations__', {})}"
        for method, other in sorted(vars(value).items()):
            made = getattr(other, "fget", getattr(other, "__func__", other))
            if isinstance(made, FunctionType):
                _follow(f"{value.__qualname__}.{method}", made, package, seen)
    elif isinstance(value, str | int | float | bool | tuple | frozenset | dict | None):
        seen[name] = f"{name} = {value!r}"


def _named(code: CodeType, scope: dict[str, Any], package: str) -> Iterator[tuple[str, Any]]:
    """Values of the package that the code names, and those that it names behind a module of the package."""
    names = {one.argval for each in _codes(code) for one in dis.get_instructions(each) if one.opname in _NAMES}
    for name in sorted(names & scope.keys()):
        value = scope[name]
        if isinstance(value, ModuleType):
            if value.__name__.partition(".")[0] == package:
                yield from (
                    (f"{value.__name__}.{other}", vars(value)[other]) for other in sorted(names & vars(value).keys())
                )
        else:
            yield name, value


def _instructions(code: CodeType) -> list[str]:
    return [
        f"{one.opname} {'' if isinstance(one.argval, CodeType) else one.argval!r}"
        for each in _codes(code)
        for one in dis.get_instructions(each)
    ]


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code and those of functions and comprehensions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
