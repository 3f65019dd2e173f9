"""Generated code: functions made from lines of Python text and the names that these use.

Dispatch and the backends write a function where a call, a tuple or a loop would cost as much as a kernel's launch.
A text is compiled once for all functions that are made of it: they differ in the values of names.
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
"""Prefix of a name in a text that must not clash with other names, e.g. a schema's parameters: ``$table``."""


@dataclass(frozen=True)
class CodeTemplate:
    """The compiled text of one function."""

    name: str
    code: CodeType

    def function(self, names: dict[str, Any], defaults: Sequence[Any] = ()) -> Callable[..., Any]:
        """A new function of this text; its last parameters have ``defaults``.

        ``names`` become its globals, and the function is added to them.
        """
        # a code object of its own, since CPython caches look-ups of globals in it
        made = names[self.name] = FunctionType(self.code.replace(), names, self.name, tuple(defaults))
        return made


def template(name: str, signature: str, lines: Sequence[str]) -> CodeTemplate:
    """The compiled text of ``def name(signature)`` with ``lines`` as its body."""
    module = _compiled(name, _text(name, signature, lines))
    return CodeTemplate(name, next(constant for constant in module.co_consts if isinstance(constant, CodeType)))


def function(
    name: str, signature: str, lines: Sequence[str], names: Mapping[str, Any], others: Collection[str] = ()
) -> Callable[..., Any]:
    """The function ``def name(signature)`` with ``lines`` as its body and ``names`` as its globals.

    ``names`` lack the prefix ``OWN`` that they have in the text; it is replaced so that none equals one of ``others``.
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
    """The compiled text. Its file name is in this package, so that warnings point at the caller of an op."""
    filename = str(Path(__file__).with_name(f"<{name} {zlib.crc32(text.encode()):08x}>"))
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    return compile(text, filename, "exec")
