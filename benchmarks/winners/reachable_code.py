"""The Python code that an implementation runs without kernels of its own: its classes, and all that they name."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import NamedTuple

from registry.fingerprint import normalised_python
from registry.implementation import Implementation, own_classes
from registry.problem import canonical_json

_ASKED = frozenset({"unsupported", "preference"})
"""Methods that decide whether and when an implementation runs, and not what."""


class UntoldError(Exception):
    """A name that leads to code in a way that is not followed."""


class _Place(NamedTuple):
    """A name on the first level of a module."""

    module: str
    name: str


def reachable_code(implementation: Implementation) -> list[str]:
    """Syntax of the implementation's classes and of all that is named there, transitively, within their package.

    Docstrings, comments and positions do not count, nor do ``unsupported`` and ``preference``. Names of other packages
    stand for themselves. Raises UntoldError for names that cannot be followed.
    """
    own = {_Place(kind.__module__, kind.__qualname__) for kind in own_classes(implementation)}
    found, waiting = dict[_Place, str](), sorted(own)
    while waiting:
        place = waiting.pop()
        if place in found:
            continue
        statements = [_without_asked(one) if place in own else one for one in _bindings(place)]
        found[place] = normalised_python("\n".join(map(ast.unparse, statements)))
        waiting += [other for one in statements for other in _named(one, place.module)]
    try:
        values = canonical_json(vars(implementation))
    except TypeError as fault:
        raise UntoldError(f"{implementation.name} holds {fault}") from fault
    return [values, *(f"{place.module}.{place.name}: {text}" for place, text in sorted(found.items()))]


def _bindings(place: _Place) -> list[ast.stmt]:
    """The statements of a module's first level that bind a name; of imports its own part, compound ones whole."""
    found = [_part(one, place.name) for one in _statements(place.module) if place.name in _bound_by(one)]
    if not found:
        raise UntoldError(f"{place.module} binds no {place.name}")
    return found


def _part(statement: ast.stmt, name: str) -> ast.stmt:
    if isinstance(statement, ast.ImportFrom):
        names = [one for one in statement.names if (one.asname or one.name) == name]
        return ast.copy_location(ast.ImportFrom(statement.module, names, statement.level), statement)
    return statement


@lru_cache(maxsize=256)
def _statements(module: str) -> list[ast.stmt]:
    try:
        path = inspect.getfile(import_module(module))
    except ImportError as fault:
        raise UntoldError(f"{module} is not installed: {fault}") from fault
    return ast.parse(Path(path).read_text(encoding="utf-8")).body


def _is_bound(name: str, module: str) -> bool:
    return any(name in _bound_by(one) for one in _statements(module))


def _bound_by(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.ImportFrom) and any(one.name == "*" for one in statement.names):
        raise UntoldError(f"from {statement.module} import *")
    found = set[str]()
    for node in ast.walk(statement):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {one.asname or one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
    return found


def _without_asked(statement: ast.stmt) -> ast.stmt:
    if not isinstance(statement, ast.ClassDef):
        return statement
    body = [one for one in statement.body if not (isinstance(one, ast.FunctionDef) and one.name in _ASKED)]
    kept = body or [ast.Pass()]
    made = ast.ClassDef(statement.name, statement.bases, statement.keywords, kept, statement.decorator_list)
    return ast.copy_location(made, statement)


def _named(statement: ast.stmt, module: str) -> Iterator[_Place]:
    """Names of the package that a statement of a module's first level names, imports of its own among them."""
    for node in ast.walk(statement):
        if isinstance(node, ast.ImportFrom):
            yield from _imported(node, module)
    modules = dict(_modules_in(module)) | dict(_modules_in(module, statement))
    attributes = {id(node.value) for node in ast.walk(statement) if isinstance(node, ast.Attribute)}
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield _Place(modules[node.value.id], node.attr)
        elif isinstance(node, ast.Name) and node.id in modules and id(node) not in attributes:
            raise UntoldError(f"{module} hands on the module {node.id}")
        elif isinstance(node, ast.Name) and node.id not in modules and _is_bound(node.id, module):
            yield _Place(module, node.id)


def _imported(node: ast.ImportFrom, module: str) -> Iterator[_Place]:
    """Names that an import takes from modules of the package, and not modules themselves."""
    source = _source(node, module)
    if source.partition(".")[0] == module.partition(".")[0]:
        for one in node.names:
            if not _is_module(f"{source}.{one.name}"):
                yield _Place(source, one.name)


def _modules_in(module: str, statement: ast.stmt | None = None) -> Iterator[tuple[str, str]]:
    """Names by which a module, or a statement of it, knows modules of the package, with these modules' names."""
    package = module.partition(".")[0]
    for top in _statements(module) if statement is None else [statement]:
        for node in ast.walk(top):
            if isinstance(node, ast.ImportFrom):
                source = _source(node, module)
                for one in node.names:
                    if source.partition(".")[0] == package and _is_module(f"{source}.{one.name}"):
                        yield one.asname or one.name, f"{source}.{one.name}"
            elif isinstance(node, ast.Import) and any(one.name.partition(".")[0] == package for one in node.names):
                raise UntoldError(f"{module} imports its package by name")


def _source(node: ast.ImportFrom, module: str) -> str:
    """The name of the module that is imported from."""
    if not node.level:
        return node.module or ""
    package = module if hasattr(sys.modules[module], "__path__") else module.rpartition(".")[0]
    return resolve_name("." * node.level + (node.module or ""), package)


@lru_cache(maxsize=1024)
def _is_module(name: str) -> bool:
    try:
        return name in sys.modules or find_spec(name) is not None
    except ModuleNotFoundError:  # what should hold it is no package
        return False
