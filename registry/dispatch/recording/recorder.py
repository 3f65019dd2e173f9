"""Counts the problems that a program calls, and writes them as a shapes file for tuning."""

from __future__ import annotations

import os
import sys
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from pathlib import Path

from ...api_checks import file_of
from ...errors import RegistryError
from ...forking import call_in_child
from ...problem import Problem
from ..warning import DispatchWarning
from . import recording_file
from .misses import Misses

VARIABLE = "KERNEL_REGISTRY_RECORD"

_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()
_watched: set[str] = set()
"""Paths of the environment variable for which the end of this process warns if nothing was recorded."""

_here = threading.local()


def is_paused() -> bool:
    """Whether this thread is in a context of ``Recorder.paused``, whose calls are none of the program's."""
    return bool(getattr(_here, "paused", False))


class _Recording:
    """The counts of this process for one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clear()

    def clear(self) -> None:
        self.left_out = 0
        self._counts: dict[Hashable, tuple[Problem, int]] = {}

    def count(self, key: Hashable, problem: Problem) -> None:
        """Count a call; calls of problems beyond ``MOST_PROBLEMS`` are counted only in ``left_out``."""
        _, before = self._counts.get(key, (problem, 0))
        if before or len(self._counts) < recording_file.MOST_PROBLEMS:
            self._counts[key] = problem, before + 1
        else:
            self.left_out += 1

    def save(self) -> bool:
        """Add the counts to the file; returns False, and writes nothing, if there are none."""
        counts: Counter[Problem] = Counter()
        for problem, count in self._counts.values():
            counts[problem] += count
        if not counts:
            return False
        try:
            recording_file.add_now(self.path, counts, self.left_out)
        except OSError as fault:
            raise RegistryError(
                f"record: {self.path} could not be written: {fault.strerror}",
                hint="the counts of this recording are lost; what was in the file is not",
            ) from fault
        return True


class Recorder:
    """Records the problems of calls. While ``active`` is 0 nothing is recorded, and ``seen`` need not be called.

    ``misses`` counts the calls without an exact winner.

    ``KERNEL_REGISTRY_RECORD=path`` records from the first call to the end of the process, child processes too.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._lock = threading.Lock()
        self._recordings: tuple[_Recording, ...] = ()
        self._wanted = environ.get(VARIABLE, "")
        self.misses = Misses(environ)
        self._whole: _Recording | None = None
        self._refused = False
        self.active = 1 if self._wanted else 0
        if self._wanted and self._wanted not in _watched:
            _watched.add(self._wanted)
            # below 0: run after the children of this process have ended
            Finalize(None, _tell_of_nothing, (self._wanted, _written(self._wanted)), exitpriority=-1)
        _recorders.add(self)

    @contextmanager
    def record(self, path: str | Path) -> Iterator[None]:
        """A context that counts the calls of all threads of this process, and adds them to the file at its end.

        The file is a shapes file: ``tune --shapes path`` tunes the problems by weight. Raises RegistryError at once for
        a path that cannot be written, a file that is no recording, and one that is in use by another recording.
        """
        recording = _Recording(recording_file.checked(file_of("record", path)))
        with self._lock:
            self._begin_whole()
            if any(other.path == recording.path for other in self._recordings):
                raise RegistryError(
                    f"record: {recording.path} is being recorded to already", hint="its calls would count twice"
                )
            self._recordings += (recording,)
            self.active += 1
        try:
            yield
        finally:
            with self._lock:
                self._recordings = tuple(one for one in self._recordings if one is not recording)
                self.active -= 1
            saved = recording.save()
        if not saved:
            warnings.warn(_nothing(recording.path), DispatchWarning, stacklevel=3)  # 2 is contextlib

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context whose calls are no calls of the program: this thread's are not recorded, and no misses counted."""
        before = is_paused()
        _here.paused = True
        try:
            with self.misses.paused():
                yield
        finally:
            _here.paused = before

    def seen(self, problem: Problem) -> None:
        """Count one call of a problem. The first call raises RegistryError if the variable's path cannot be written."""
        if is_paused():
            return
        # a problem's own key is JSON, which takes ten times as long
        key = (problem.op, *problem.dims.items())
        with self._lock:
            if self._wanted and self._whole is None:
                self._begin_whole()
            for recording in self._recordings:
                recording.count(key, problem)

    @property
    def recorded(self) -> str:
        """The environment variable's path after the first call, also if it could not be written; before that ""."""
        return self._wanted if self._whole is not None or self._refused else ""

    def _begin_whole(self) -> None:
        """Begin the recording to the variable's path, which is saved when this process ends."""
        if not self._wanted or self._whole is not None:
            return
        try:
            self._whole = _Recording(recording_file.checked(self._wanted))
        except RegistryError as fault:
            self._refused = True
            raise type(fault)(f"{VARIABLE}: {fault.message}", hint=fault.hint) from None
        self._recordings += (self._whole,)
        # unlike atexit's, it runs in the children of multiprocessing too
        Finalize(None, _save_at_exit, (self._whole,), exitpriority=100)

    def in_forked_child(self) -> None:
        """Start without counts, which belong to the parent, and with new locks, whose owners are not in the child."""
        self._lock = threading.Lock()
        for recording in self._recordings:
            recording.clear()
        # registered at the first call, since multiprocessing drops exit functions when a child begins
        self._recordings = tuple(one for one in self._recordings if one is not self._whole)
        self._whole = None


def _tell_of_nothing(path: str, before: int) -> None:
    """Warn, at the end of a program, if neither it nor its children recorded anything."""
    if (
        parent_process() is None
        and _written(path) == before
        and not any(recorder.recorded == path for recorder in list(_recorders))
    ):
        # no line of the program is running any more
        warnings.warn_explicit(f"{VARIABLE}: {_nothing(path)}", DispatchWarning, sys.argv[0] or "python", 0)


def _written(path: str) -> int:
    """The time at which a file was last written; 0 if it does not exist."""
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


def _nothing(path: str | Path) -> str:
    return f"nothing was recorded to {path}: no op was called that a kernel could answer"


def _save_at_exit(recording: _Recording) -> None:
    try:
        recording.save()
    except RegistryError as fault:
        warnings.warn(DispatchWarning(str(fault)), stacklevel=1)


def _after_fork() -> None:
    for recorder in list(_recorders):
        recorder.in_forked_child()


call_in_child(_after_fork)
