"""Starting children: on Linux through a keeper (``registry.tuner.processes.keeper``), elsewhere by executing them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ...errors import RegistryError
from ...paths import compiler_caches
from . import keeper as keeper_module

Launched = tuple[subprocess.Popen[bytes], socket.socket, str]
"""A keeper's process, its socket, and the folder for temporary files, "" for none."""

_PATIENCE_S = 20.0


@dataclass(frozen=True)
class Command:
    """``python -m module arguments``. ``extra`` are environment variables beside this process's own."""

    module: str
    arguments: Sequence[str] = ()
    extra: Mapping[str, str] | None = None
    memory_bytes: int = 0
    fresh: bool = False


@dataclass(frozen=True)
class Ending:
    """How a process ended: its exit code (negative: a signal), and why, if that is known."""

    code: int
    why: str = ""
    out_of_memory: bool = False


class KeeperClient:
    """The connection to a keeper process."""

    def __init__(self, launched: Launched) -> None:
        self._process, self._socket, self._temporary = launched
        self._numbers = itertools.count(1)
        self.owner = os.getpid()

    @property
    def pid(self) -> int:
        """The process id of the keeper itself."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the keeper can start children; False in a fork of the process that it belongs to."""
        return self.owner == os.getpid() and self._process.poll() is None

    def start(self, command: Command, channel: int, log: int) -> _Kept:
        """Start a process that has ``channel`` for its messages and ``log`` for its stdout and stderr."""
        number = next(self._numbers)
        request = {
            "do": "start", "id": number, "python": sys.executable, "module": command.module,
            "arguments": list(command.arguments), "environment": dict(os.environ),
            "extra": {**_for_children(), **(command.extra or {})}, "folder": str(Path.cwd()),
            "memory_bytes": command.memory_bytes, "fresh": command.fresh,
        }  # fmt: skip
        status, theirs = os.pipe()
        try:
            keeper_module.send(self._socket, request, [channel, log, theirs])
        except OSError as fault:
            os.close(status)
            raise RegistryError(
                f"no process can be started: {fault}", hint="the environment may be too large"
            ) from fault
        finally:
            os.close(theirs)
        return _Kept(self, number, status)

    def kill(self, number: int) -> None:
        """Kill the group of the child with this number."""
        with contextlib.suppress(OSError):
            keeper_module.send(self._socket, {"do": "kill", "id": number}, [])

    def warm(self, modules: Sequence[str]) -> None:
        """Let children started from now on find these modules imported, as soon as that is done."""
        with contextlib.suppress(OSError):
            keeper_module.send(self._socket, {"do": "warm", "modules": list(modules)}, [])

    def close(self) -> None:
        """End the keeper, with all its children."""
        self._socket.close()
        if self.owner != os.getpid():
            return
        try:
            self._process.wait(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode and self._temporary:  # it was killed, and left its folder
            shutil.rmtree(self._temporary, ignore_errors=True)


class _Kept:
    """A child of the keeper, whose process id and end come over a pipe; if the pipe itself ends, the keeper died."""

    def __init__(self, keeper: KeeperClient, number: int, status: int) -> None:
        self._keeper = keeper
        self._number = number
        self._status = status
        self._buffer = b""
        self._ending: Ending | None = None
        self._pid = 0
        self._how = ""

    @property
    def pid(self) -> int:
        """The child's process id, 0 if it could not be started; waits until it is started."""
        while not self._pid and self._ending is None:
            self._read(None)
        return self._pid

    @property
    def how(self) -> str:
        """How the child was started, or why it was not."""
        return self._how if self.pid or self._ending else ""

    def ended(self, seconds: float = 0.0) -> Ending | None:
        """How the child ended, waiting at most ``seconds``; None while it runs."""
        until = time.monotonic() + seconds
        while self._ending is None and self._read(max(0.0, until - time.monotonic())):
            pass
        return self._ending

    def kill(self) -> None:
        """Kill the child's whole process group. May be called again."""
        if self._ending is None:
            self._keeper.kill(self._number)

    def close(self) -> None:
        """Free the descriptor that this process holds of the child."""
        if self._status >= 0:
            os.close(self._status)
            self._status = -1

    def _read(self, seconds: float | None) -> bool:
        """Take in a message of the keeper; returns whether one came within ``seconds``."""
        if self._status < 0:
            self._ending = self._ending or Ending(1, "it was closed")
            return False
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        if not poll.poll(None if seconds is None else seconds * 1000):
            return False
        data = os.read(self._status, 4096)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._take_in(json.loads(line))
        if not data and self._ending is None:
            self._ending = Ending(-signal.SIGKILL, "the process that kept it died")
        return True

    def _take_in(self, told: Mapping[str, Any]) -> None:
        if "pid" in told:
            self._pid, self._how = told["pid"], told["how"]
        else:
            self._ending = Ending(told["ended"], told["why"], told["out_of_memory"])


class Plain:
    """A child that this process has executed itself, where there is no keeper; it has the methods of a kept child."""

    def __init__(self, command: Command, channel: int, log: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", command.module, str(channel), str(os.getpid()), *command.arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[channel],
            start_new_session=True,
            env={**os.environ, **_for_children(), **(command.extra or {})},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    how = "executed"

    def ended(self, seconds: float = 0.0) -> Ending | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return Ending(self._process.wait(timeout=seconds))
        return None

    def kill(self) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_PATIENCE_S)


def _for_children() -> dict[str, str]:
    """Variables of all children: one cache for their compilers, and no pool of compiler processes for each child.

    Inductor starts such a pool, with a process a core, when it compiles, and also when it loads what was compiled.
    """
    return {**compiler_caches(), "TORCHINDUCTOR_COMPILE_THREADS": "1"}


Started = _Kept | Plain
"""A process that was started, by a keeper or by this process."""

_lock = threading.Lock()
_shared: list[KeeperClient] = []
_holders = 0
_modules: tuple[str, ...] = ()


@contextlib.contextmanager
def kept(*modules: str, now: bool = True) -> Iterator[None]:
    """Context in which children share one keeper, which ends with the last of the open blocks.

    The keeper is started ``now``, or else with the first child. Its template meanwhile imports the ``modules`` of the
    outermost block, and calls the function of a ``module:function``. A block that is opened early saves time.
    """
    global _holders, _modules  # noqa: PLW0603  (one keeper a process, counted)
    with _lock:
        _modules = _modules if _holders else modules
        _holders += 1
    try:
        if now and _has_keeper():
            _keeper()
        yield
    finally:
        with _lock:
            _holders -= 1
            last = _shared.pop() if _shared and not _holders else None
        if last is not None:
            last.close()


def adopt(launched: Launched) -> None:
    """Use a keeper that was launched before torch was imported here: its template has been importing meanwhile."""
    with _lock:
        _share(launched)


def warm(*modules: str) -> None:
    """Let children started from now on find these modules imported, as soon as that is done.

    Of ``module:function`` the function is called: it must neither start a thread nor open a device.
    """
    if _has_keeper():
        _keeper().warm(modules)


def start(command: Command, channel: socket.socket, log: IO[bytes]) -> Started:
    """Start a process. Raises RegistryError when that is impossible."""
    if not _has_keeper():
        return Plain(command, channel.fileno(), log.fileno())
    return _keeper().start(command, channel.fileno(), log.fileno())


def _has_keeper() -> bool:
    return sys.platform == "linux"


def _keeper() -> KeeperClient:
    with _lock:
        if not _shared or not _shared[0].alive:
            _share(keeper_module.launch(*_modules))
        return _shared[0]


def _share(launched: Launched) -> None:
    for old in _shared:
        old.close()
    _shared[:] = [KeeperClient(launched)]
