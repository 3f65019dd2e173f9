"""Calls that no exact winner answers: counted by problem without a cost to hits, and written as a shapes file."""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.util import Finalize, register_after_fork
from pathlib import Path
from typing import Protocol

from tuning_db import MissingDatabaseError
from tuning_db.database.location import default_path

from ...errors import RegistryError
from ...forking import call_in_child
from ...paths import expanded
from ...problem import Problem
from ..warning import DispatchWarning
from . import recording_file

MISSES_VARIABLE = "KERNEL_REGISTRY_MISSES"

_OFF = frozenset({"", "0"})
_INTERVAL_S = 60.0
"""Seconds after which a further miss writes what was counted, so that a killed process loses little."""
_MOST_COUNTERS = 8
"""Counters of a problem that are kept: a call in another layout, or one that was forgotten, has one of its own."""

_all: weakref.WeakSet[Misses] = weakref.WeakSet()


def misses_file(environ: Mapping[str, str] = os.environ) -> Path:
    """The file of missed calls: the variable's path, else ``misses.yaml`` in the user's data folder.

    Raises RegistryError where the user has no home folder.
    """
    told = environ.get(MISSES_VARIABLE, "")
    if told in _OFF or told == "1":
        try:
            return default_path().with_name("misses.yaml")
        except MissingDatabaseError:
            raise RegistryError(
                "there is no folder for the counts of missed calls: this user has no home folder",
                hint=f"set {MISSES_VARIABLE} to a file, or HOME",
            ) from None
    return expanded(told)


class CallsCounter(Protocol):
    """Counts the calls that one plan answers, hits too."""

    @property
    def value(self) -> int: ...


class _Missed:
    """One problem, the counters of what answers it, and the calls that were written or belong to another process."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._counters: list[CallsCounter] = []
        self._dropped = 0
        self._written = 0
        self._held: int | None = None
        """The calls that were not yet taken when ``hold`` was called, until ``release``."""

    def add(self, calls: CallsCounter) -> None:
        if any(known is calls for known in self._counters):
            return
        self._counters.append(calls)
        if len(self._counters) > _MOST_COUNTERS:
            self._dropped += self._counters.pop(0).value

    def taken(self) -> int:
        """The calls since the last time that they were taken."""
        if self._held is not None:
            new, self._held = self._held, 0
            return new
        total = self._total()
        new, self._written = total - self._written, total
        return new

    def hold(self, untaken: int | None = None) -> None:
        """Leave out the calls from now on until ``release``; ``untaken``: those before, where they are known."""
        self._held = self._total() - self._written if untaken is None else untaken

    def release(self) -> None:
        """Count the calls from now on."""
        self._written = self._total() - (self._held or 0)
        self._held = None

    def _total(self) -> int:
        return self._dropped + sum(counter.value for counter in self._counters)


class Misses:
    """The problems whose calls were not answered by a winner of exactly this problem, and how many calls there were.

    Hits cost nothing: each plan counts its calls anyway, and the counters are read when the file is written. That is at
    the end of a process, child processes included, and with a miss a minute after the last time. While ``active`` is
    False, nothing is noted. A file that cannot be written is warned of once; calls go on.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self.active = environ.get(MISSES_VARIABLE, "") not in _OFF
        self._environ = environ
        self._lock = threading.Lock()
        self._missed: dict[Hashable, _Missed] = {}
        self._left_out = 0
        self._path: Path | None = None
        self._saved_at = 0.0
        self._pauses = 0
        if self.active:
            _all.add(self)

    def note(self, problem: Problem, calls: CallsCounter) -> None:
        """Note that ``calls`` counts calls of a problem without an exact winner."""
        with self._lock:
            if self._path is None and not self._begin():
                return
            key = (problem.op, *problem.dims.items())
            missed = self._missed.get(key)
            if missed is None:
                if len(self._missed) >= recording_file.MOST_PROBLEMS:
                    self._left_out += 1
                    return
                missed = self._missed[key] = _Missed(problem)
                if self._pauses:
                    missed.hold(0)
            missed.add(calls)
        if time.monotonic() - self._saved_at > _INTERVAL_S:
            self.save()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context whose calls, of all threads, are not counted; later calls that its plans answer are."""
        with self._lock:
            self._pauses += 1
            if self._pauses == 1:
                for one in self._missed.values():
                    one.hold()
        try:
            yield
        finally:
            with self._lock:
                self._pauses -= 1
                if not self._pauses:
                    for one in self._missed.values():
                        one.release()

    def save(self) -> None:
        """Add the calls since the last time to the file."""
        with self._lock:
            self._saved_at = time.monotonic()
            counts = Counter({one.problem: new for one in self._missed.values() if (new := one.taken())})
            left_out, self._left_out = self._left_out, 0
            if self._path is None or not (counts or left_out):
                return
            try:
                recording_file.add_now(self._path, counts, left_out)
            except (OSError, RegistryError) as fault:
                self._give_up(fault)

    def in_forked_child(self) -> None:
        """Leave to the parent what it counted, and see that the file is written at the end of this process, too."""
        self._lock = threading.Lock()
        for one in self._missed.values():
            one.taken()
        self._left_out = 0
        self._save_at_end()

    def _save_at_end(self) -> None:
        if self._path is not None:
            # unlike atexit's, it runs in the children of multiprocessing too
            Finalize(None, self.save, exitpriority=100)

    def _begin(self) -> bool:
        """Check the file, and see that it is written at the end; False, with a warning, if it cannot be."""
        if not self.active:
            return False
        try:
            path = misses_file(self._environ)
            if self._environ[MISSES_VARIABLE] == "1":
                path.parent.mkdir(parents=True, exist_ok=True)
            self._path = recording_file.checked(path)
        except (OSError, RegistryError) as fault:
            self._give_up(fault)
            return False
        self._saved_at = time.monotonic()
        self._save_at_end()
        # a child of multiprocessing drops exit functions when it begins, before it calls this
        register_after_fork(self, Misses._save_at_end)
        return True

    def _give_up(self, fault: Exception) -> None:
        self.active = False
        self._missed.clear()
        warnings.warn(DispatchWarning(f"{MISSES_VARIABLE}: missed calls are not counted: {fault}"), stacklevel=2)


def _after_fork() -> None:
    for misses in list(_all):
        misses.in_forked_child()


call_in_child(_after_fork)
