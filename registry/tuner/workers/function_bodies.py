"""Tells which functions were given other code or other defaults, which leaves their names and objects as they are.

CPython keeps a function's code, defaults and keyword defaults beside each other. Where they are not found so, each
function is asked for them, which takes ten times as long.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache, partial
from types import FunctionType
from typing import Any

# bound at import, and of builtin types, which cannot be patched
_joined, _view, _all, _map, _is = b"".join, memoryview, all, map, operator.is_
_parts_of: Callable[[FunctionType], tuple[Any, ...]] = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__")
_WORD = ctypes.sizeof(ctypes.c_void_p)
_READ = 3 * _WORD
_Cached = type(lru_cache(lambda: None))


class FunctionBodies:
    """Functions, with their code and defaults at the time when each was given to ``watch``."""

    def __init__(self) -> None:
        self._functions: dict[FunctionType, tuple[str, tuple[Any, ...]]] = {}
        self._memory: list[memoryview] = []
        self._last = b""

    def watch(self, name: str, value: Any) -> None:
        """Look from now on at the functions of which a function, method, property or wrapper consists."""
        for function in functions_in(value):
            if function not in self._functions:
                self._functions[function] = name, _parts_of(function)
                self._memory += [_memory_of(function)] if OFFSET else []
                self._last = b""

    def restore(self) -> Iterator[tuple[str, Any]]:
        """Undo changes; yields the name of each changed function, with the code that it was given."""
        # 2400 functions in 60 µs
        if OFFSET and _joined(self._memory) == self._last:
            return
        for function, (name, was) in self._functions.items():
            given = _parts_of(function)
            if not _all(_map(_is, given, was)):
                function.__code__, function.__defaults__, function.__kwdefaults__ = was
                yield name, given[0]
        self._last = _joined(self._memory)


def functions_in(value: Any) -> Iterator[FunctionType]:
    """The functions of Python that run when ``value`` is called or read."""
    if isinstance(value, FunctionType):
        yield value
        # what a decorator calls
        yield from functions_in(vars(value).get("__wrapped__"))
    elif isinstance(value, staticmethod | classmethod):
        yield from functions_in(value.__func__)
    elif isinstance(value, property):
        for part in (value.fget, value.fset, value.fdel):
            yield from functions_in(part)
    elif isinstance(value, cached_property | partial):
        yield from functions_in(value.func)
    elif isinstance(value, _Cached):
        yield from functions_in(value.__wrapped__)


def _memory_of(function: FunctionType) -> memoryview:
    return _view((ctypes.c_char * _READ).from_address(id(function) + OFFSET))


def _offset() -> int:
    """Bytes from a function's address to that of its code, with those of its defaults behind it; 0 if not found."""

    def example(one: object = 1, *, other: object = 2) -> None: ...

    function: Any = example
    size = type(function).__basicsize__ // _WORD
    words = list((ctypes.c_size_t * size).from_address(id(function)))
    parts = [id(part) for part in _parts_of(function)]
    found = [place for place in range(size) if words[place : place + 3] == parts]
    return found[0] * _WORD if len(found) == 1 else 0


OFFSET = _offset()
"""Where a function's code is in memory, 0 where this interpreter keeps it otherwise."""
