"""Which source an implementation is made of: its module, what that imports of its package, or a notebook's cells."""

from __future__ import annotations

import ast
import inspect
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import resolve_name
from types import CodeType, FunctionType, ModuleType
from typing import Any

from .fingerprint import PythonText, has_source, module_text

_Sources = tuple[ModuleType | str, ...]


def sources_of(*definitions: type | FunctionType) -> _Sources:
    """What classes or functions are made of: their modules with ``source_modules``, or their own text in a notebook."""
    found: dict[object, ModuleType | str] = {}
    for definition in definitions:
        module = sys.modules.get(definition.__module__)
        if module is not None and has_source(module):
            found |= {getattr(source, "__name__", source): source for source in source_modules(module)}
        else:
            text = _definition_text(definition)
            found[text] = text
    return tuple(found.values())


def source_modules(module: ModuleType) -> _Sources:
    """``module`` and what it imports of its own package, transitively.

    The import statements tell, also those inside functions, so that imported constants count and the result is the
    same before and after a late import; a module that was not imported yet comes as PythonText.
    """
    start = _Found(module.__name__, module.__package__ or "", module_text(module), module)
    top = (start.package or start.name).partition(".")[0]
    found, waiting = {start.name: start}, [start]
    while waiting:
        current = waiting.pop(0)
        for base, name in _imports(current.text, current.package):
            if base.partition(".")[0] != top:
                continue
            other = (_find(f"{base}.{name}") if name else None) or _find(base)
            if other is not None and other.name not in found:
                found[other.name] = other
                waiting.append(other)
    return tuple(each.source for each in found.values())


@dataclass(frozen=True)
class _Found:
    """A module's name, what its relative imports start from, its text, and what the fingerprint hashes."""

    name: str
    package: str
    text: str
    source: ModuleType | PythonText


@lru_cache(maxsize=256)
def _imports(text: str, package: str) -> tuple[tuple[str, str], ...]:
    """(module, name in it) of every import statement; the name is empty for ``import module``."""
    found: list[tuple[str, str]] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = resolve_name("." * node.level + base, package)
            found += [(base, alias.name) for alias in node.names]
    return tuple(dict.fromkeys(found))


def _find(name: str) -> _Found | None:
    """A module that has Python source, imported or not; nothing is imported."""
    module = sys.modules.get(name)
    if module is not None:
        return _Found(name, module.__package__ or "", module_text(module), module) if has_source(module) else None
    spec = _spec(name)
    if spec is None or not isinstance(spec.loader, SourceFileLoader):
        return None
    text = PythonText(spec.loader.get_source(name) or "")
    return _Found(name, spec.parent or "", text, text)


def _spec(name: str) -> ModuleSpec | None:
    parent, _, _ = name.rpartition(".")
    if not parent:
        return None
    loaded = sys.modules.get(parent)
    if loaded is None:
        above = _spec(parent)
        folders = above.submodule_search_locations if above else None
    else:
        folders = getattr(loaded, "__path__", None)
    return PathFinder.find_spec(name, folders) if folders else None


def _definition_text(definition: type | FunctionType) -> PythonText:
    """The text of a class or function whose module is no file, and of what it uses of that module."""
    texts: dict[str, str] = {}
    _collect(definition.__qualname__, definition, definition.__module__, texts)
    return PythonText("\n".join(texts[name] for name in sorted(texts)))


def _collect(name: str, value: Any, module: str, texts: dict[str, str]) -> None:
    """Add ``value`` and what it refers to by name, as far as that is code or plain data of ``module``."""
    if name in texts:
        return
    function = _function(value)
    if isinstance(value, type) and value.__module__ == module:
        texts[name] = f"({name!a}, {[base.__qualname__ for base in value.__bases__]!a})"
        for base in value.__bases__:
            _collect(base.__qualname__, base, module, texts)
        for member, content in vars(value).items():
            if not member.startswith("__") or _function(content):
                _collect(f"{name}.{member}", content, module, texts)
    elif function is not None and function.__module__ == module:
        texts[name] = _function_text(name, function)
        for used in sorted(_names(function.__code__) & function.__globals__.keys()):
            _collect(used, function.__globals__[used], module, texts)
    elif isinstance(value, bool | int | float | str | bytes | tuple | None):
        texts[name] = f"({name!a}, {value!a})"


def _function(value: Any) -> FunctionType | None:
    """The function in a method, a property or a Triton kernel."""
    for attribute in ("__func__", "fget", "fn"):
        value = getattr(value, attribute, value)
    return value if isinstance(value, FunctionType) else None


def _function_text(name: str, function: FunctionType) -> str:
    """A function's source as a statement; its byte code where nobody kept the source (an interactive session)."""
    try:
        source = inspect.getsource(function)
        text = f"if {name!a}:\n{source}" if source[:1].isspace() else f"({name!a},)\n{source}"
        ast.parse(text)
    except (OSError, SyntaxError):
        return f"({name!a}, {_plain(function.__code__)!a})"
    return text


def _plain(code: CodeType) -> tuple[Any, ...]:
    constants = [_plain(value) if isinstance(value, CodeType) else value for value in code.co_consts]
    return (code.co_code, code.co_names, code.co_varnames, tuple(constants))


def _names(code: CodeType) -> set[str]:
    """Every name that a function's code refers to, also inside functions that it makes."""
    inner = (value for value in code.co_consts if isinstance(value, CodeType))
    return set(code.co_names).union(*map(_names, inner))
