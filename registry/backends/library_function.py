"""Implementations by a Python callable, from a library or the user's own."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from importlib import metadata
from types import FunctionType, ModuleType
from typing import Any

from ..artifact import Built
from ..author_code import where_called
from ..contract import Op
from ..contract.field_checks import uncallable
from ..device import Device, installed_version
from ..errors import InvalidDefinitionError, UnknownNameError, UnsupportedError
from ..implementation import Implementation, Run, Tensors
from ..problem import Problem
from ..source_files import sources_of
from ..space import Config

_TEXT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*\Z")

Refuses = Callable[[Problem, Device], Iterable[str]]
"""``refuses(problem, device)``: every reason, as text, why a problem cannot run on a device."""


def implementation_of(  # noqa: PLR0913  (an option each)
    op: str,
    name: str,
    fn: Callable[..., Any] | str,
    *,
    library: str = "",
    any_size: bool = False,
    into: bool = False,
    unsupported: Refuses | None = None,
    device_types: Iterable[str] = ("cpu", "cuda"),
    deterministic: bool = True,
    capturable: bool = True,
    preference: float = -1.0,
    preloads: Iterable[str] = (),
) -> Implementation:
    """``fn`` as an implementation of ``op``, to register or to return from a hook.

    fn            is called with the schema's values in order and returns the outputs. Text, ``"module:function"``, is
                  imported when it first runs
    library       the distribution that ``fn`` comes from: its installed version is part of the fingerprint, and no
                  problem is supported while it is not installed. The source of ``fn`` counts if it is not the library's
    any_size      ``fn`` serves every size of the dynamic dimensions: True for functions that compile nothing per size
    into          ``fn`` takes the outputs first, writes into them and returns nothing
    unsupported   as ``Implementation.unsupported``
    preference    where nothing is tuned the highest runs first; torch's own op is 0
    preloads      as ``Implementation.preloads``: what the library imports for seconds is imported once for all of the
                  tuner's processes

    Raises InvalidDefinitionError for an ``fn`` that is neither callable nor such text, and for an ``unsupported`` that
    is no function.
    """
    if not (callable(fn) or (isinstance(fn, str) and _TEXT.match(fn))):
        raise InvalidDefinitionError(
            f"implementation_of({op!r}, {name!r}, {fn!r:.80})", hint='expected a callable or "module:function"'
        )
    if unsupported is not None and not callable(unsupported):
        raise InvalidDefinitionError(
            f"implementation_of({op!r}, {name!r}): unsupported is {unsupported!r:.80} ({where_called()})",
            hint="expected a function of (problem, device) that yields every reason",
        )
    made = LibraryFunction(fn, library, unsupported, preference)
    made.op, made.name, made.any_size, made.returns_outputs = op, name, any_size, not into
    made.deterministic, made.capturable = deterministic, capturable
    vars(made)["preloads"] = (preloads,) if isinstance(preloads, str) else tuple(preloads)
    vars(made)["device_types"] = frozenset({device_types} if isinstance(device_types, str) else device_types)
    return made


class LibraryFunction(Implementation):
    """The implementation that ``implementation_of`` returns."""

    def __init__(
        self, fn: Callable[..., Any] | str, library: str, unsupported: Refuses | None, preference: float
    ) -> None:
        self._fn = fn
        self._library = library
        self._refuses = unsupported
        self._preference = preference

    @property
    def author_functions(self) -> Mapping[str, Callable[..., Any]]:
        """The author's functions by the method that calls each; messages show their lines. Without texts."""
        given = {"bind": self._fn, "unsupported": self._refuses}
        return {
            name: fn  # type: ignore[misc]
            for name, fn in given.items()
            if isinstance(_definition(fn), FunctionType)
        }

    @property
    def definition(self) -> tuple[str, str]:
        module, _, name = _told(self._fn).partition(":")
        return module, name

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        """The reason that the library or the function's package is missing; else those of ``unsupported`` as given."""
        if self._library and not installed_version(self._library):
            return [f"{self._library} is not installed (pip install {self._library})"]
        package = self.definition[0].partition(".")[0]
        if isinstance(self._fn, str) and importlib.util.find_spec(package) is None:
            return [f"there is no module {package}"]
        return () if self._refuses is None else self._refuses(problem, device)

    def preference(self, problem: Problem, device: Device) -> float:
        return self._preference

    def misfit(self, op: Op) -> str:
        """Why the function cannot be called with the schema's values, with its line; "" if it can, or is not known."""
        if isinstance(self._fn, str):
            return ""  # it is imported when it first runs
        given = op.parsed.names if self.returns_outputs else (*op.parsed.outputs, *op.parsed.names)
        return uncallable(self._fn, given)

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        function = _imported(self.name, self._fn) if isinstance(self._fn, str) else self._fn
        if self.returns_outputs:
            return lambda _outputs, arguments, _scratch: function(*arguments)

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            function(*outputs, *arguments)

        return run

    def sources(self) -> Iterable[ModuleType | str]:
        """The library's version, the function's name, and the modules of both functions outside of the library."""
        yield f"{self._library} {installed_version(self._library)}" if self._library else ""
        yield _told(self._fn)
        module = self.definition[0]
        if not _is_part_of(module, self._library):
            with contextlib.suppress(UnsupportedError):  # a function that cannot be imported never runs
                yield from _sources(_imported(self.name, self._fn) if isinstance(self._fn, str) else self._fn)
        if self._refuses is not None:
            yield from _sources(self._refuses)

    def __repr__(self) -> str:
        return f"<{_told(self._fn)} as {self.name} of {self.op}>"


def _told(fn: Callable[..., Any] | str) -> str:
    """``module:function``, with the arguments of a ``functools.partial``."""
    if isinstance(fn, str):
        return fn
    if isinstance(fn, functools.partial):
        named = [f"{name}={value!r}" for name, value in sorted(fn.keywords.items())]
        return f"{_told(fn.func)}({', '.join([*map(repr, fn.args), *named])})"
    definition = _definition(fn)
    name = getattr(definition, "__name__" if inspect.isbuiltin(definition) else "__qualname__", None) or str(definition)
    owner = definition if hasattr(definition, "__module__") else type(definition)
    return f"{owner.__module__ or 'builtins'}:{name}"


def _definition(fn: Any) -> Any:
    """The Python function or class whose source defines a callable; the callable itself if it is built in."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, type):
        return owner  # a class method, such as ``apply`` of a torch.autograd.Function
    fn = getattr(fn, "__func__", fn)
    if isinstance(fn, FunctionType | type) or inspect.isbuiltin(fn) or type(fn).__module__.startswith("torch."):
        return fn
    return type(fn)


def _sources(fn: Any) -> Iterable[ModuleType | str]:
    definition = _definition(fn)
    # torch's version is part of the software identity, with which winners are stored
    if isinstance(definition, FunctionType | type) and not _is_part_of(definition.__module__, "torch"):
        yield from sources_of(definition)


def _imported(name: str, text: str) -> Callable[..., Any]:
    module_name, _, path = text.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as fault:
        raise UnsupportedError(f"{name}: {module_name} cannot be imported: {fault}") from fault
    for part in path.split("."):
        known = [name for name in dir(found) if not name.startswith("_")]
        found = getattr(found, part, None)
        if found is None:
            raise UnknownNameError(f"function of {module_name}", part, known)
    function: Callable[..., Any] = found
    return function


@lru_cache(maxsize=256)
def _is_part_of(module: str, library: str) -> bool:
    """True if the distribution ``library`` installed a module; their names may differ."""
    package = module.partition(".")[0]
    if package == re.sub(r"[-.]", "_", library).lower():
        return True
    try:
        found = metadata.distribution(library) if library else None
    except metadata.PackageNotFoundError:
        found = None
    # an editable installation lists no module, but names the packages
    named = (found.read_text("top_level.txt") or "").split() if found is not None else []
    files = (found.files or ()) if found is not None else ()
    return package in named or any(path.parts[0] in {package, f"{package}.py"} for path in files)
