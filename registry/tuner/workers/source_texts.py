"""Tells whether a process runs the very code that the tuning run began with, file by file.

A run lasts for minutes, and its finals load a plugin's files again in fresh processes. A file that was edited meanwhile
is other code than what the search has verified and what the winner is stored for.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from ...discovery.file_import import CurrentFileLoader
from ...fingerprint import has_source, module_text, text_of_file
from ...implementation import Implementation, own_classes
from ...source_files import source_texts
from .dynamo_codes import is_made_by_dynamo
from .function_bodies import functions_in

# bound at import, so that a candidate's later patch is not called
_compile = compile


def source_digest(implementation: Implementation) -> str:
    """The sources of an implementation with a hash of each, as this process has read them, for ``source_fault``.

    That is the files of its classes, what these import but installed packages, and the kernel sources that they name.
    "" where a class has no file, as in a notebook.
    """
    modules = _modules(implementation)
    if not modules or not all(map(has_source, modules)):
        return ""
    texts = source_texts(*own_classes(implementation))
    return json.dumps([(name, file, _hash(text)) for name, (file, text) in texts.items()])


def source_fault(implementation: Implementation, digest: str) -> str:
    """Why the code of an implementation is not what the run began with, "" if it is.

    ``digest``: its ``source_digest`` in the process of the run, "" if that is not known.
    """
    modules = dict.fromkeys(_modules(implementation))
    for name, file, hashed in _listed(digest):
        module = sys.modules.get(name)
        is_loaded = module is not None and has_source(module)
        if is_loaded:
            assert module is not None
            modules[module] = None
        now = module_text(module) if is_loaded and module is not None else _text_of(file)
        if now is not None and _hash(now) != hashed:
            return (
                f"{implementation.name}: a file of it has changed since the run began, so that other code would be"
                f" measured than what was verified: {file}; run again"
            )
    for module in filter(_is_compiled_as_it_is, modules):
        if name := next(_strange(implementation, module), ""):
            return (
                f"{implementation.name}: {name} is not what its file {module.__file__} says: the file was edited while"
                " it was imported, or a compiled file in __pycache__ was; remove that folder, and run again"
            )
    return ""


@lru_cache(maxsize=64)
def _listed(digest: str) -> Sequence[tuple[str, str, str]]:
    return [(name, file, hashed) for name, file, hashed in json.loads(digest)] if digest else []


@lru_cache(maxsize=1024)
def _hash(text: str) -> str:
    """A hash that does not depend on line ends at the end of a text: Python adds one to that of an imported module."""
    return hashlib.sha256(text.rstrip("\n").encode()).hexdigest()


def _text_of(file: str) -> str | None:
    """The text of a file that this process has not imported; None where there is no such file here."""
    path = Path(file)
    try:
        return text_of_file(path) if path.suffix == ".py" else path.read_text(errors="replace")
    except OSError:
        return None
    except (SyntaxError, UnicodeDecodeError):
        # it was edited so that it is no Python any more
        return path.read_text(errors="replace")


def _modules(implementation: Implementation) -> list[ModuleType]:
    names = dict.fromkeys(kind.__module__ for kind in own_classes(implementation))
    return [sys.modules[name] for name in names if name in sys.modules]


def _is_compiled_as_it_is(module: ModuleType) -> bool:
    """False for a module of another loader than Python's own, such as pytest's, which compiles other text."""
    spec = module.__spec__
    return has_source(module) and spec is not None and type(spec.loader) in (SourceFileLoader, CurrentFileLoader)


def _strange(implementation: Implementation, module: ModuleType) -> Iterator[str]:
    """Names of functions that say to be of a module's file, and are not of its text."""
    codes = _codes_of(module_text(module), module.__file__ or "")
    kinds = [kind for kind in own_classes(implementation) if kind.__module__ == module.__name__]
    for place in (module, *kinds):
        for value in list(vars(place).values()):
            for function in functions_in(value):
                code = function.__code__
                is_here = code.co_filename == module.__file__
                if is_here and code not in codes and not is_made_by_dynamo(code):
                    yield code.co_qualname


@lru_cache(maxsize=256)
def _codes_of(text: str, file: str) -> frozenset[CodeType]:
    """The code of every function in a text."""
    found, waiting = set[CodeType](), [_compile(text, file, "exec", dont_inherit=True)]
    while waiting:
        inner = [part for part in waiting.pop().co_consts if isinstance(part, CodeType)]
        found.update(inner)
        waiting += inner
    return frozenset(found)
