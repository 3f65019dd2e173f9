"""The one writer of generated code: functions made of lines of Python text, with every name that they reach for.

Dispatch and the backends write a function where a call, a tuple or a loop would cost as much as a kernel's launch.
A text is compiled once, however many functions are made of it: what differs between them are names.
"""

from __future__ import annotations

import linecache
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

OWN = "$"
"""Begins a name in a text that must not meet a name of somebody else, e.g. a parameter of a schema: ``$table``."""


@dataclass(frozen=True)
class CodeTemplate:
    """The compiled text of one function."""

    name: str
    code: CodeType

    def function(self, names: dict[str, Any], defaults: Sequence[Any] = ()) -> Callable[..., Any]:
        """A new function of this text; its last parameters have ``defaults``.

        ``names`` become its globals, where the function itself stands as well.
        """
        # a code object of its own: CPython remembers in it where a global was found last
        made = names[self.name] = FunctionType(self.code.replace(), names, self.name, tuple(defaults))
        return made


def with_defaults(function: Any, defaults: Sequence[Any]) -> Callable[..., Any]:
    """A function with other defaults, which shares everything else."""
    return FunctionType(function.__code__, function.__globals__, function.__name__, tuple(defaults))


def template(name: str, signature: str, lines: Sequence[str]) -> CodeTemplate:
    """The compiled text of ``def name(signature)`` with ``lines`` as its body."""
    module = _compiled(name, _text(name, signature, lines))
    return CodeTemplate(name, next(constant for constant in module.co_consts if isinstance(constant, CodeType)))


def function(
    name: str, signature: str, lines: Sequence[str], names: Mapping[str, Any], others: Collection[str] = ()
) -> Callable[..., Any]:
    """A function of these lines and ``names``.

    Names that begin with ``OWN`` in the text are given without it, and meet none of the ``others``.
    """
    prefix = "_" if others else ""
    while prefix and any(other.startswith(prefix) for other in others):
        prefix += "_"
    name = name.replace(OWN, prefix)
    scope = {f"{prefix}{known}": value for known, value in names.items()}
    exec(_compiled(name, _text(name, signature, lines).replace(OWN, prefix)), scope)
    made: Callable[..., Any] = scope[name]
    return made


def _text(name: str, signature: str, lines: Sequence[str]) -> str:
    return f"def {name}({signature}):\n" + "".join(f"    {line}\n" for line in lines or ["pass"])


@lru_cache(maxsize=4096)
def _compiled(name: str, text: str) -> CodeType:
    """The text's code. Its file stands in this package, so that warnings point at the caller of an op."""
    filename = str(Path(__file__).with_name(f"<{name} {zlib.crc32(text.encode()):08x}>"))
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    return compile(text, filename, "exec")
