"""The parameters that a Python function reads, found in its byte code."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

_SEES_ALL = frozenset({"locals", "vars", "eval", "exec", "dir", "_getframe", "currentframe", "stack"})
"""Names by which code reaches its variables without naming them."""


def loaded_parameters(function: Callable[..., Any], names: Sequence[str]) -> frozenset[str]:
    """The parameters among ``names``, passed by position, that the function may read.

    All of them if it is no plain Python function, or accesses its variables other than by name.
    """
    if not isinstance(function, FunctionType) or _SEES_ALL & {*function.__code__.co_names}:
        return frozenset(names)
    code = function.__code__
    loaded = _loaded(code)
    own = code.co_varnames[: code.co_argcount]
    variadic = bool(code.co_flags & inspect.CO_VARARGS) and code.co_varnames[code.co_argcount + code.co_kwonlyargcount]
    return frozenset(
        name for place, name in enumerate(names) if (own[place] if place < len(own) else variadic) in loaded
    )


def _loaded(code: CodeType) -> frozenset[str]:
    """Names of the local variables that the code reads."""
    found: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname not in {"STORE_FAST", "MAKE_CELL"}:
            value = instruction.argval
            # from Python 3.13 on, one instruction may load two variables
            found.update(name for name in (value if isinstance(value, tuple) else (value,)) if isinstance(name, str))
    return frozenset(found)
