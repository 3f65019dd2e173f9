"""The imports in a module's text, and whether each is an installed package or source that no distribution installed."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from pathlib import Path

_COUNTED_ELSEWHERE = frozenset({*sys.stdlib_module_names, "torch", "triton", __name__.partition(".")[0], "tuning_db"})
_IMPORTERS = frozenset({"import_module", "__import__"})
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_MAX_NAME = 255
KERNEL_SUFFIXES = (".cu", ".cuh", ".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".inc", ".ptx", ".cl", ".ll")
"""Ends of the names of files that hold the source of kernels."""
DATA_SUFFIXES = (
    ".json", ".toml", ".yaml", ".yml", ".ini", ".cfg", ".csv", ".npy", ".npz", ".bin", ".pt", ".safetensors",
    ".cubin", ".fatbin", ".hsaco", ".so", ".pyd", ".dll", ".dylib",
)  # fmt: skip
"""Ends of the names of files that decide what code does: its numbers, and code that was compiled elsewhere."""


@lru_cache(maxsize=256)
def imports_of(text: str, package: str, *, late: bool = True) -> tuple[tuple[str, str], ...]:
    """(module, name in it) of every import in ``text`` of a module in ``package``; ("m", "") for ``import m``.

    A constant that is given to ``importlib.import_module`` or ``__import__`` is an import too. Without ``late`` only
    statements of the module itself count, which have run when it is imported.
    """
    tree = ast.parse(text)
    found: list[tuple[str, str]] = []
    for node in ast.walk(tree) if late else _run_at_import(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute("." * node.level + (node.module or ""), package)
            found += [(base, alias.name) for alias in node.names]
        elif isinstance(node, ast.Call) and (name := _imported_by(node)):
            found.append((_absolute(name, package), ""))
    return tuple(dict.fromkeys(found))


def _run_at_import(tree: ast.Module) -> Iterator[ast.stmt]:
    for statement in tree.body:
        yield from statement.body if isinstance(statement, ast.Try) else (statement,)


def _absolute(name: str, package: str) -> str:
    return resolve_name(name, package) if name.startswith(".") and package else name


def _imported_by(call: ast.Call) -> str:
    """The constant that a call hands to ``importlib.import_module`` or ``__import__``; "" for any other call."""
    function, first = call.func, call.args[0] if call.args else None
    name = getattr(function, "attr", None) or getattr(function, "id", None)
    if name in _IMPORTERS and isinstance(first, ast.Constant) and isinstance(first.value, str):
        return first.value
    return ""


def file_names_in(text: str, suffixes: tuple[str, ...] = (".py",)) -> tuple[str, ...]:
    """Every text constant of Python ``text`` that could name a file with one of the suffixes, a Python file if none."""
    return tuple(name for name in _names_in(text) if name.endswith(suffixes))


def folder_names_in(text: str) -> tuple[str, ...]:
    """Every text constant of Python ``text`` that is an identifier, or several with slashes between: maybe a folder."""
    return tuple(name for name in _names_in(text) if all(map(str.isidentifier, name.split("/"))))


@lru_cache(maxsize=256)
def _names_in(text: str) -> tuple[str, ...]:
    """Every text constant of Python ``text`` that is short enough to be a name."""
    constants = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    names = (value for value in constants if isinstance(value, str) and 0 < len(value) <= _MAX_NAME)
    return tuple(dict.fromkeys(name for name in names if "\n" not in name))


def find_spec(name: str) -> ModuleSpec | None:
    """The spec of a module that may not be imported yet; neither it nor its packages are imported for that."""
    parent, _, _ = name.rpartition(".")
    if not parent:
        return PathFinder.find_spec(name)
    loaded = sys.modules.get(parent)
    if loaded is None:
        above = find_spec(parent)
        folders = above.submodule_search_locations if above else None
    else:
        folders = getattr(loaded, "__path__", None)
    return PathFinder.find_spec(name, folders) if folders else None


def installed_package(package: str) -> str | None:
    """``"numpy 2.4.0"`` for a top-level package of an installed distribution, "" for any other source.

    None for Python's own library, torch, Triton and this package. An editable installation counts as source.
    """
    if package in _COUNTED_ELSEWHERE:
        return None
    return _installed(package) if _INSTALLED & set(_place(package).parts) else ""


def _place(package: str) -> Path:
    module = sys.modules.get(package)
    spec = module.__spec__ if module is not None else find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path((spec.origin if spec is not None else None) or next(iter(folders), ""))


@lru_cache(maxsize=256)
def _installed(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        # the distribution has another name, e.g. PyYAML for yaml: reading all distributions takes 0.1 s
        names = metadata.packages_distributions().get(package, [])
        return " ".join(f"{name} {metadata.version(name)}" for name in sorted(set(names)))
