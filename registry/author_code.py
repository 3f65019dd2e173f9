"""File and line of an author's code, as messages show them: of definitions, of calls, of faults, of kernel text."""

from __future__ import annotations

import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

_OURS = f"{Path(__file__).parent}{os.sep}"
_PYTHONS = f"{sysconfig.get_path('stdlib')}{os.sep}"
_PACKAGES = ("site-packages", "dist-packages")
_WRAPPED = ("func", "__func__", "fget", "fn", "__wrapped__")
_KERNEL_FILES = frozenset({".cpp", ".cc", ".c", ".h", ".hpp", ".cu", ".cuh"})


def where_defined(thing: Any) -> str:
    """``"kernels.py:12"``: where a class, function, method, property or kernel is defined; "" if unknown.

    For any other object it is the definition of the object's class.
    """
    code = _code(thing)
    if code is not None:
        return shown(code.co_filename, code.co_firstlineno)
    definition = thing if isinstance(thing, type) else type(thing)
    try:
        _, line = inspect.getsourcelines(definition)
        return shown(inspect.getfile(definition), line)
    except (OSError, TypeError):
        return ""


def at(thing: Any) -> str:
    """`` (kernels.py:12)``, to stand behind a name in a message; "" where the definition is not known."""
    return _behind(where_defined(thing))


def at_class(definition: type) -> str:
    """`` (kernels.py:12)`` of an author's class; "" for one of this package, of Python's, or of an unknown file."""
    return "" if _file_of(definition).startswith(_OURS) else at(definition)


def at_method(owner: object, name: str, fault: BaseException | None = None) -> str:
    """`` (kernels.py:12)`` of method ``name`` of ``owner``, or of the line in it that raised ``fault``.

    A method that the class inherits from this package is not the author's: then it is the place of the class, or of the
    one of ``author_functions``, by the methods that call them, that the owner was made of. "" if the message of
    ``fault`` names a line of the class's file already.
    """
    if fault is not None and any(shown(file, 0).removesuffix("0") in str(fault) for file in _author_files(owner)):
        return ""
    if fault is not None and (line := where_raised(fault, owner)):
        return line
    method = getattr(owner, name, None)
    code = _code(method)
    if code is None or code.co_filename.startswith(_OURS):
        functions = _functions(owner)
        function = functions.get(name, functions.get("bind"))
        return at_class(type(owner)) if function is None else at(function)
    return _behind(where_defined(method))


def _behind(place: str) -> str:
    return f" ({place})" if place else ""


def where_called() -> str:
    """``"kernels.py:12"``: the innermost line on the stack outside of this package."""
    frame = outer_frame(sys._getframe(1))
    return shown(frame.f_code.co_filename, frame.f_lineno)


def outer_frame(frame: FrameType) -> FrameType:
    """The innermost frame from ``frame`` outwards that is outside of this package; the outermost if there is none."""
    # the constructor of a dataclass is compiled from text that has no file
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_OURS, "<string>")):
        frame = frame.f_back
    return frame


def where_raised(fault: BaseException, *owners: object) -> str:
    """`` (kernels.py:12)``: the last line that a fault went through in the files of ``owners`` or their classes.

    Where the fault passed through none of these files, its cause may have: Triton's interpreter raises what a kernel
    raised anew. "" if no cause did, either, or if the message names the line already.
    """
    files = {file for owner in owners for file in _author_files(owner)}
    lines: list[traceback.FrameSummary] = []
    cause: BaseException | None = fault
    while cause is not None and not lines:
        lines = [frame for frame in traceback.extract_tb(cause.__traceback__) if frame.filename in files]
        cause = cause.__cause__
    place = shown(lines[-1].filename, lines[-1].lineno or 0) if lines else ""
    return "" if place in str(fault) else _behind(place)


def where_run_failed(fault: BaseException, implementation: object) -> str:
    """`` (kernels.py:12)``: the line of the author that raised in a run, or that of a ``bind`` of other parameters."""
    line = where_raised(fault, implementation)
    never_entered = type(fault) is TypeError and ".bind()" in str(fault)
    return line or (at_method(implementation, "bind", fault) if never_entered else "")


def author_frame(fault: BaseException) -> traceback.FrameSummary | None:
    """The innermost frame of a fault in a file of neither this package, Python's library nor torch; None without one.

    A definition is the author's line also where its check, or ``dataclasses.replace``, is what raises.
    """
    torch_file = getattr(sys.modules.get("torch"), "__file__", None)
    others = (_OURS, "<", *([f"{Path(torch_file).parent}{os.sep}"] if torch_file else []))
    for frame in reversed(traceback.extract_tb(fault.__traceback__)):
        in_library = frame.filename.startswith(_PYTHONS) and not any(name in frame.filename for name in _PACKAGES)
        if not in_library and not frame.filename.startswith(others):
            return frame
    return None


def _author_files(owner: object) -> Iterable[str]:
    made_of = (file for function in _functions(owner).values() for file in _defining_files(function))
    return (file for file in (*_defining_files(owner), *made_of) if not file.startswith(_OURS))


def _functions(owner: object) -> Mapping[str, Any]:
    """The functions of an author that ``owner`` is made of, by the methods that call them; empty for a class."""
    return {} if isinstance(owner, type) else getattr(owner, "author_functions", {})


def _defining_files(owner: object) -> Iterable[str]:
    if (code := _code(owner)) is not None:
        yield code.co_filename
    else:
        yield from map(_file_of, type(owner).__mro__)


def _file_of(definition: type) -> str:
    """The file of a class's module; for a class without a file the folder of this package."""
    return getattr(sys.modules.get(definition.__module__), "__file__", None) or _OURS


def where_written(text: str, line: int, modules: Iterable[ModuleType]) -> str:
    """``"kernels.py:40"``: where line ``line`` (from 1) of kernel text stands, in a module or a file beside it."""
    wanted = text.splitlines()[line - 1 : line]
    for path in _files(modules):
        held = path.read_text(errors="replace")
        if (start := held.find(text)) >= 0:
            return shown(str(path), held.count("\n", 0, start) + line)
        if held and wanted and (start := text.find(held)) >= 0:
            first = text.count("\n", 0, start)
            if first < line <= first + len(held.splitlines()):
                return shown(str(path), line - first)
    return ""


def shown(file: str, line: int) -> str:
    """File and line as a person reads them: relative to the current folder, or with the name of the file's folder."""
    path = Path(file)
    if path.is_absolute():
        path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else Path(path.parent.name, path.name)
    return f"{path}:{line}"


def _code(thing: Any) -> CodeType | None:
    if isinstance(thing, partial):
        return _code(thing.func)
    for attribute in _WRAPPED:
        thing = getattr(thing, attribute, thing) if not isinstance(thing, type) else thing
    found = getattr(thing, "__code__", None)
    return found if isinstance(found, CodeType) and isinstance(thing, Callable) else None  # type: ignore[arg-type]


def _files(modules: Iterable[ModuleType]) -> Iterable[Path]:
    for module in modules:
        file = Path(getattr(module, "__file__", None) or os.devnull)
        if file.is_file():
            yield file
            yield from (each for each in sorted(file.parent.iterdir()) if each.suffix in _KERNEL_FILES)
