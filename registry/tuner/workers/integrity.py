"""Finds functions and classes of measuring and verifying that plugin code has replaced.

A worker records them before it imports any plugin, with their code, and with the constants of our own modules. A later
replacement is found and undone, and the trials of the plugin that made it are refused. A plugin is code with the rights
of its process, so a determined attack is not stopped; a patched clock is.
"""

from __future__ import annotations

import builtins
import gc
import itertools
import math
import operator
import os
import random
import secrets
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from ...contract import Op, Tolerance
from ...implementation import Implementation
from ..measure.persisting_cache import keep_persisting
from ..verify.verdicts import WrongError
from .dictionary_writes import DictionaryWrites
from .function_bodies import FunctionBodies
from .left_running import LeftProcesses, LeftRunning, LeftThreads, adopts_orphans
from .settings import SETTINGS

# bound at import: a plugin may replace them later
_all, _map, _is, _Values = all, map, operator.is_, operator.itemgetter

_NOT_OURS = {"torch.manual_seed", "torch.Storage"}
"""Functions that torch.compile and torch.set_default_dtype replace; the tuner does not call them."""
_OPEN = frozenset({"print", "input", "open", "breakpoint", "help", "exit", "quit", "__import__", "__build_class__"})
"""Builtins that honest tools replace."""
WATCHED = (
    "registry.tuner",
    "registry.arguments",
    "registry.contract",
    "registry.correctness",
    "registry.discovery.process_settings",
    "registry.dispatch.plans.other_size",
    "registry.dispatch.plans.plan",
    "registry.dispatch.plans.two_threads",
    "registry.faults",
    "registry.problem",
)
"""Prefixes of the names of our modules that judge and time, and of the modules that they call."""
_WRITTEN_TO = ("registry.tuner.processes", "registry.contracts")
"""Prefixes of our modules that count something in their own names, or whose functions torch.compile may compile."""
_LIBRARY: tuple[ModuleType, ...] = (
    builtins,
    gc,
    itertools,
    math,
    os,
    random,
    secrets,
    statistics,
    time,
    torch.nn.functional,
    torch.special,
    torch.linalg,
)
_LIBRARY_NAMES = frozenset(module.__name__ for module in _LIBRARY) | {"torch", "torch.cuda"}
_TORCH: tuple[ModuleType | type, ...] = (
    torch,
    torch.Tensor,
    torch.cuda,
    torch.cuda.Event,
    torch.cuda.Stream,
    torch.cuda.CUDAGraph,
    torch.Generator,
)


@dataclass(frozen=True)
class Replaced:
    """The dotted name of a replaced function or class, and the top-level module that replaced it (``owner``)."""

    name: str
    owner: str

    def __str__(self) -> str:
        return f"{self.name} by {self.owner}" if self.owner else self.name


class _Part:
    """A module or class and its functions, or a contract and its fields; of our own modules also their constants.

    A new name counts where it hides an inherited or built-in one. Tables are dictionaries: these are compared, too.
    """

    def __init__(self, name: str, place: Any) -> None:
        self._name = name
        self.place = place
        now = vars(place)
        self._first_names = frozenset(now)
        self._names = tuple(now)
        self._may_hide: tuple[str, ...] = ()
        names = self._first_names - _OPEN if place is builtins else self._first_names
        self._callables = {
            part: value
            for part, value in now.items()
            if part in names and self._counts(part, value) and f"{name}.{part}" not in _NOT_OURS
        }
        self.tables = [(f"{name}.{part}", value, dict(value)) for part, value in self._tables_among(now)]
        self._remember()

    def _remember(self) -> None:
        parts = tuple(self._callables)
        self._values = _Values(*parts) if len(parts) > 1 else lambda now: tuple(now[part] for part in parts)
        self._were = tuple(self._callables.values())

    @property
    def _is_strangers(self) -> bool:
        """True for a module of a plugin."""
        return (
            isinstance(self.place, ModuleType)
            and self._name not in _LIBRARY_NAMES | {"__main__"}
            and not (self._name.startswith(WATCHED))
        )

    def _counts(self, part: str, value: Any) -> bool:
        is_constant = self._name.startswith(WATCHED) and isinstance(self.place, ModuleType) and _is_capital(part)
        return _is_code(value) or is_constant or is_dataclass(self.place)

    def _tables_among(self, now: Mapping[str, Any]) -> Iterator[tuple[str, dict[Any, Any]]]:
        for part in self._callables:
            value = now[part]
            # what keeps its results by key, such as a cache, is written to all the time
            is_field = not isinstance(self.place, type | ModuleType) and part[:1] != "_"
            if type(value) is dict and (_is_capital(part) or is_field):
                yield part, value

    @property
    def is_ours(self) -> bool:
        """True for a module or class of this package that nothing writes to once it has been imported."""
        is_place = isinstance(self.place, type | ModuleType)
        return is_place and self._name.startswith(WATCHED) and not self._name.startswith(_WRITTEN_TO)

    @property
    def put_back(self) -> Replaced:
        """The report of a place that was written to, and has its former value again."""
        return Replaced(f"{self._name}, which was put back afterwards", "")

    @property
    def names(self) -> frozenset[str]:
        """The names at the last look."""
        return frozenset(self._names)

    @property
    def callables(self) -> Iterator[tuple[str, Any]]:
        """The dotted name and the value of each."""
        return ((f"{self._name}.{part}", value) for part, value in self._callables.items())

    @property
    def is_settled(self) -> bool:
        """Whether nothing can be found but after a write to the dictionary of this module or class."""
        return isinstance(self.place, type | ModuleType) and not self._may_hide

    @property
    def is_as_it_was(self) -> bool:
        """Whether nothing was replaced, and no name was added or removed; False where it takes longer to tell."""
        now = vars(self.place)
        names = tuple(now)
        if len(names) != len(self._names) or not _all(_map(_is, names, self._names)):
            return False
        try:
            return _all(_map(_is, self._values(now), self._were)) and not self.hides_a_name
        except KeyError:
            return False

    @property
    def hides_a_name(self) -> bool:
        """Whether a name that was added, and hid nothing at the last look, hides one by now."""
        return any(map(self._hides, self._may_hide))

    def restore(self) -> Iterator[Replaced]:
        """Undo replacements; yields each."""
        now = vars(self.place)
        self._names = tuple(now)
        for part, was in list(self._callables.items()):
            if now.get(part) is was:
                continue
            owner = _owner(now.get(part))
            if self._is_strangers and owner in {"", _top(self._name)}:
                # a plugin may replace its own functions, e.g. when it has loaded what they are made of
                del self._callables[part]
                self._remember()
            else:
                yield Replaced(f"{self._name}.{part}", owner)
                self._put_back(part, was)
        hides_names = isinstance(self.place, type) or self._name.startswith(WATCHED)
        self._may_hide = tuple(part for part in self._names if hides_names and part not in self._first_names)
        for part in filter(self._hides, self._may_hide):
            yield Replaced(f"{self._name}.{part}", _owner(now[part]))
            if isinstance(self.place, type):
                type.__delattr__(self.place, part)
            else:
                del now[part]

    def _put_back(self, part: str, was: Any) -> None:
        """Write to a place as its own kind does, not as a plugin may have it refuse."""
        if isinstance(self.place, type):
            type.__setattr__(self.place, part, was)
        elif isinstance(self.place, ModuleType):
            vars(self.place)[part] = was
        else:
            object.__setattr__(self.place, part, was)

    def _hides(self, part: str) -> bool:
        if isinstance(self.place, type):
            return any(part in vars(base) for base in self.place.__mro__[1:])
        return self._name.startswith(WATCHED) and hasattr(builtins, part)


class Integrity:
    """The functions and classes of measuring and verifying at the time of construction."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self._contracts: list[_Part] = []
        self._unsettled: list[_Part] = []
        self._suspects: dict[_Part, None] = {}
        """Places that were written to, and that no look has been through with."""
        self._undone: set[_Part] = set()
        """Places that the last look has written to."""
        self._looked_at = 0
        """The number of parts, the first ones, that a look has been through with: what is new is no write."""
        self._writes = DictionaryWrites()
        self._bodies = FunctionBodies()
        self._tables: list[tuple[str, dict[Any, Any], dict[Any, Any]]] = []
        """The name of each table, the table, and what it held."""
        self._kept: set[int] = set()
        self._modules: set[str] = set()
        """Names of the modules that are watched."""
        self._watch(_places())
        self._modules = {part.place.__name__ for part in self._parts if isinstance(part.place, ModuleType)}

    def keep(self, op: Op, implementations: Iterable[Implementation]) -> None:
        """Watch an op's contract, and the classes of its implementations and their modules, from now on."""
        if id(op) in self._kept:
            return
        self._kept.add(id(op))
        kinds = {kind for one in implementations for kind in type(one).__mro__[:-1]}
        self._watch((f"{kind.__module__}.{kind.__qualname__}", kind) for kind in kinds)
        names = {kind.__module__ for kind in kinds} - self._modules
        self._modules |= names
        self._watch((name, sys.modules[name]) for name in names if name in sys.modules)
        tolerances = {f"{op.name}.{name}": found for name, found in vars(op).items() if isinstance(found, Tolerance)}
        contracts = [_Part(name, place) for name, place in {op.name: op, **tolerances}.items()]
        self._contracts += contracts
        for part in contracts:
            self._watch_inside(part)

    def _watch(self, places: Iterable[tuple[str, ModuleType | type]]) -> None:
        for name, place in places:
            self._writes.watch(place)
            self._parts.append(_Part(name, place))
            self._watch_inside(self._parts[-1])

    def _watch_inside(self, part: _Part) -> None:
        self._tables += part.tables
        for name, value in part.callables:
            self._bodies.watch(name, value)

    def restore(self) -> list[Replaced]:
        """Undo every replacement since construction; returns the replacements.

        A part of our own modules that is replaced for a moment and put back is found by the write to its place.
        """
        # told before the parts are looked at: a write in the meantime is found at the next call
        places = self._writes.since_the_last_look()
        self._suspects |= dict.fromkeys(self._parts[place] for place in places)
        seen = self._looked_at if self._writes.are_numbered else 0
        written = {self._parts[place] for place in places if place < seen} - self._undone
        self._undone.clear()
        self._looked_at = len(self._parts)
        hiding = (part for part in self._unsettled if part.hides_a_name)
        suspects = dict.fromkeys((*self._suspects, *hiding, *self._contracts))
        found: list[Replaced] = []
        for part in suspects:
            names, undone = part.names, [] if part.is_as_it_was else list(part.restore())
            if part in written and part.is_ours and not undone and part.names == names:
                found.append(part.put_back)
            elif undone:
                self._undone.add(part)
            found += undone
            # not before: what an exception has interrupted is looked at again
            if part in self._suspects:
                del self._suspects[part]
                self._settle(part)
        return [*found, *self._restore_inside()]

    def _restore_inside(self) -> Iterator[Replaced]:
        """Undo changes of functions and tables that are in their places; yields each."""
        for name, code in self._bodies.restore():
            yield Replaced(name, _module_of(code))
        for name, table, was in self._tables:
            if table != was:
                table.clear()
                table.update(was)
                yield Replaced(name, "")

    def _settle(self, part: _Part) -> None:
        if part in self._unsettled:
            self._unsettled.remove(part)
        if not part.is_settled:
            self._unsettled.append(part)


class Trust:
    """A worker's record of plugins that have replaced functions. ``lost``: the worker must not measure any more."""

    def __init__(self, integrity: Integrity) -> None:
        self._integrity = integrity
        # a process that ends, such as the worker before this one, may still hold a part of the cache
        keep_persisting(0)
        self._settings = {name: setting.read() for name, setting in SETTINGS.items()}
        self._threads = LeftThreads()
        self._processes = LeftProcesses()
        self._guilty: dict[str, str] = {}
        self._admitted: set[str] = set()
        self.lost = False

    def keep(self, op: Op, implementations: Iterable[Implementation]) -> None:
        """Watch an op's contract, and the classes of its implementations, from now on."""
        self._integrity.keep(op, implementations)

    def admit(self, implementation: Implementation) -> None:
        """Undo replacements and settings that were made while plugins were imported.

        Raises WrongError if it was the implementation's plugin that replaced something, or that left a thread running.
        """
        if implementation.op not in self._admitted:
            # an op's plugins are imported once; later replacements are found after each trial
            for replaced in self._look():
                self._guilty.setdefault(replaced.owner, _told([replaced]))
            self._restore_settings()
            self._accept_threads()
            self._processes.accept()
            self._admitted.add(implementation.op)
        if message := self._guilty.get(_top(type(implementation).__module__)):
            raise WrongError("error", message)

    def breach(self) -> str:
        """The replacements, settings, threads and processes since the last call, as a message; "" without any.

        After a replacement, or beside a thread, no time of this worker can be believed: ``lost`` is set.
        """
        if not self._admitted:
            # nobody was tried: what runs is of those that were imported
            self._accept_threads()
            self._processes.accept()
        replaced, settings, threads = self._look(), self._restore_settings(), self._threads.running()
        self.lost = self.lost or bool(replaced or threads)
        return _told(replaced) if replaced else "; ".join([*settings, *_left(threads), *self._ended()])

    def _ended(self) -> Iterator[str]:
        """End the processes that run beside a worker process; yields a message for each. Others have their own."""
        for process in self._processes.running() if adopts_orphans() else ():
            process.end()
            yield f"it leaves a process running: {process}"

    def _accept_threads(self) -> None:
        """Hold threads that run against the plugin whose code they run, so that nobody else is blamed for them."""
        for thread in self._threads.running():
            self._threads.accept(thread)
            self._guilty.setdefault(_module_of(thread.code), "; ".join(_left([thread])))

    def _look(self) -> list[Replaced]:
        """The replacements, undone. Where the look is interrupted, e.g. by a plugin's timer, the worker is ``lost``."""
        try:
            return self._integrity.restore()
        except BaseException:
            self.lost = True
            raise

    def _restore_settings(self) -> list[str]:
        """Undo changed settings of the process; returns a message for each."""
        found = []
        for name, was in self._settings.items():
            setting = SETTINGS[name]
            if setting.differs(was, now := setting.read()):
                before, after = setting.shown(was, now)
                found.append(f"it sets {name} to {after}, where it was {before}, for the whole process")
                if setting.restore is None:
                    self.lost = True
                else:
                    setting.restore(was)
        return found


def _told(replaced: Sequence[Replaced]) -> str:
    names = ", ".join(map(str, replaced[:5])) + (", ..." if len(replaced) > 5 else "")
    return f"it replaces what measures or verifies it: {names}; nothing that it measured can be believed"


def _left(threads: Sequence[LeftRunning]) -> list[str]:
    return [f"it leaves a thread running: {name}" for name in sorted({*map(str, threads)})]


def _top(module: str) -> str:
    return module.partition(".")[0]


def _places() -> Iterator[tuple[str, ModuleType | type]]:
    for module in _LIBRARY:
        yield module.__name__, module
    for place in _TORCH:
        yield place.__name__ if isinstance(place, ModuleType) else f"{place.__module__}.{place.__qualname__}", place
    for name, module in list(sys.modules.items()):
        if name.startswith(WATCHED) or name == "__main__":
            yield name, module
            for part in vars(module).values():
                if isinstance(part, type) and part.__module__ == name:
                    yield f"{name}.{part.__qualname__}", part


def _is_capital(name: str) -> bool:
    return name.upper() == name and name[:2] != "__"


def _module_of(code: CodeType) -> str:
    """The top-level module whose file the code was compiled from, "" where there is none."""
    files = ((name, getattr(module, "__file__", None)) for name, module in list(sys.modules.items()))
    return next((_top(name) for name, file in files if file and file == code.co_filename), "")


def _is_code(value: Any) -> bool:
    return callable(value) or isinstance(value, property | staticmethod | classmethod)


def _owner(part: Any) -> str:
    """The top-level module that a replacement was defined in, "" where it has none, as a number."""
    if not _is_code(part):
        return ""
    if isinstance(part, property):
        part = part.fget
    part = getattr(part, "__func__", part)
    if isinstance(part, FunctionType):
        return _top(str(part.__globals__.get("__name__", "")))
    return _top(str(getattr(part, "__module__", None) or type(part).__module__))
