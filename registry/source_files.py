"""The source that an implementation is made of: its module and the modules it imports, or a notebook's cells."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import ExtensionFileLoader, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from .fingerprint import PythonText, has_source, is_kernel_text, module_text, text_of_file
from .imports import (
    DATA_SUFFIXES,
    KERNEL_SUFFIXES,
    file_names_in,
    find_spec,
    folder_names_in,
    imports_of,
    installed_package,
)

_Sources = tuple[ModuleType | str, ...]


def kernel_texts(*definitions: type) -> tuple[str, ...]:
    """Kernel texts, e.g. read from files, that classes and the modules imported with them hold as values.

    Values are text with marks of C++, objects whose ``source`` is text, as kernels are, and containers of these.
    """
    holders: dict[object, None] = {}
    for definition in definitions:
        module = sys.modules.get(definition.__module__)
        if module is not None and has_source(module):
            holders |= {each: None for each in source_modules(module, late=False) if isinstance(each, ModuleType)}
        holders[definition] = None
    values = (vars(holder)[name] for holder in holders for name in sorted(vars(holder)))
    return tuple(dict.fromkeys(text for value in values for text in _texts_in(value)))


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if is_kernel_text(value):
            yield value
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(one)
    elif not isinstance(value, type | ModuleType | FunctionType):
        source = getattr(value, "__dict__", {}).get("source")
        if isinstance(source, str):
            yield source


def sources_of(*definitions: type | FunctionType) -> _Sources:
    """The sources of classes or functions: ``source_modules`` of their modules, or their own text in a notebook."""
    found: dict[object, ModuleType | str] = {}
    for definition in definitions:
        module = sys.modules.get(definition.__module__)
        if module is not None and has_source(module):
            found |= {getattr(source, "__name__", source): source for source in source_modules(module)}
        else:
            text = _definition_text(definition)
            found[text] = text
    return tuple(found.values())


def source_modules(module: ModuleType, *, late: bool = True) -> _Sources:
    """``module`` and all that it imports, transitively: source of its package and of modules that no distribution
    installed, such as a file beside it; name and version of an installed package.

    Imports are found in the text: statements, also inside functions, and constants given to ``importlib``. So imported
    constants count, and the result does not change by a late import. A module that is not imported yet, or that is
    loaded by its file's name, is a PythonText, and so is the hash of a file of data or of compiled code that a module
    names or imports. Python's own library, torch, Triton and this package are left out: winners are stored with their
    versions. Without ``late`` imports inside functions do not count.
    """
    found, versions = _reached(module, late=late)
    return (*(each.source for each in found), *(versions[name] for name in sorted(versions)))


def source_texts(*definitions: type | FunctionType) -> Mapping[str, tuple[str, str]]:
    """The name of each source of classes or functions -> its file and its text, as this process has read them.

    Sources are those of ``source_modules``, and the kernel sources that these name: files such as ``k.cu`` beside a
    module or in a folder beside it that the module names. Installed packages are left out, since nobody edits them.
    """
    found: dict[str, tuple[str, str]] = {}
    for name in dict.fromkeys(definition.__module__ for definition in definitions):
        module = sys.modules.get(name)
        for each in _reached(module)[0] if module is not None and has_source(module) else ():
            if not each.is_hash:
                found[each.name] = each.file, each.text
            for file in _named_files(each, KERNEL_SUFFIXES):
                found[str(file)] = str(file), file.read_text(errors="replace")
    return found


def _reached(module: ModuleType, *, late: bool = True) -> tuple[Collection[_Found], Mapping[str, PythonText]]:
    """Sources that ``module`` imports, itself among them, and the versions of installed packages by their names."""
    start = _Found(module.__name__, module.__package__ or "", module_text(module), module, module.__file__ or "")
    top = (start.package or start.name).partition(".")[0]
    found: dict[str, _Found] = {start.name: start}
    versions: dict[str, PythonText] = {}
    waiting = [start]
    while waiting:
        current = waiting.pop(0)
        others: list[_Found | None] = [*_loaded_files(current), *_data_files(current)]
        for base, name in imports_of(current.text, current.package, late=late):
            package = base.partition(".")[0]
            installed = "" if package == top else installed_package(package)
            if installed is None:
                continue
            if installed:
                versions[package] = PythonText(repr(installed))
            else:
                others.append((_find(f"{base}.{name}") if name else None) or _find(base))
        for other in others:
            if other is not None and other.name not in found:
                found[other.name] = other
                waiting.append(other)
    return found.values(), versions


@dataclass(frozen=True)
class _Found:
    """A module: its name, package (for relative imports), text, ``source`` that the fingerprint hashes, and file."""

    name: str
    package: str
    text: str
    source: ModuleType | PythonText
    file: str
    is_hash: bool = False

    @classmethod
    def hashed(cls, name: str, file: Path) -> _Found:
        """A file that is no Python source, as the hash of its bytes; its place does not count."""
        status = file.stat()
        text = PythonText(repr((file.name, _hash_of(file, status.st_mtime_ns, status.st_size))))
        return cls(name, "", text, text, str(file), is_hash=True)


@lru_cache(maxsize=256)
def _hash_of(file: Path, _changed_ns: int, _size: int) -> str:
    """SHA-256 over the bytes of a file, which is read again when it has changed."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _find(name: str) -> _Found | None:
    """The module of that name if it has Python source or is a file of compiled code; nothing is imported."""
    module = sys.modules.get(name)
    if module is not None:
        if not has_source(module):
            return _compiled(name, module.__spec__)
        return _Found(name, module.__package__ or "", module_text(module), module, module.__file__ or "")
    spec = find_spec(name)
    if spec is None or not isinstance(spec.loader, SourceFileLoader):
        return _compiled(name, spec)
    text = PythonText(spec.loader.get_source(name) or "")
    return _Found(name, spec.parent or "", text, text, spec.origin or "")


def _compiled(name: str, spec: ModuleSpec | None) -> _Found | None:
    """The compiled extension of that spec; None for any other module."""
    if spec is None or not spec.origin or not isinstance(spec.loader, ExtensionFileLoader):
        return None
    return _Found.hashed(name, Path(spec.origin))


def _data_files(found: _Found) -> Iterator[_Found]:
    """The files of data and of compiled code that a module names, in the folders of ``_named_files``."""
    for file in _named_files(found, DATA_SUFFIXES):
        with suppress(OSError):
            yield _Found.hashed(str(file), file)


def _loaded_files(found: _Found) -> Iterator[_Found]:
    """The Python files that a module names by a path from its own folder, as for ``spec_from_file_location``."""
    folder = Path(found.file).parent
    for name in file_names_in(found.text):
        file = folder / name
        if file.is_file() and file != Path(found.file):
            text = PythonText(text_of_file(file))
            yield _Found(str(file), "", text, text, str(file))


def _named_files(found: _Found, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """The files with such suffixes that a module names, beside it or in a folder beside it that it names."""
    if not found.file or found.is_hash:
        return
    folder = Path(found.file).parent
    folders = [folder, *(folder / name for name in folder_names_in(found.text) if (folder / name).is_dir())]
    for name in file_names_in(found.text, suffixes):
        yield from filter(Path.is_file, (each / name for each in folders))


def _definition_text(definition: type | FunctionType) -> PythonText:
    """The text of a class or function whose module is no file, and of the definitions of that module that it uses."""
    texts: dict[str, str] = {}
    _collect(definition.__qualname__, definition, definition.__module__, texts)
    return PythonText("\n".join(texts[name] for name in sorted(texts)))


def _collect(name: str, value: Any, module: str, texts: dict[str, str]) -> None:
    """Add to ``texts`` the text of ``value`` and of all code and plain data of ``module`` that it refers to by name."""
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
    """A function's source as a statement; its byte code where there is no source (an interactive session)."""
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
