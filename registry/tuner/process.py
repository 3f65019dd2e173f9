"""A child process that is spoken to in JSON lines over one socket, and killed with its whole group."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]

_LOG_LIMIT = 1 << 20
_PR_SET_PDEATHSIG = 1


class Child:
    """``python -m module`` in a process group of its own; its stdout and stderr go to a capped file.

    Not ``multiprocessing``: its spawn imports the user's script again, and one abort breaks every future of a pool.
    """

    def __init__(
        self, module: str, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        ours, theirs = socket.socketpair()
        # deleted by name at once; appending, so that truncating it while the child writes is safe
        self._log = tempfile.TemporaryFile(mode="a+b")  # noqa: SIM115
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno()), str(os.getpid()), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        self._socket = ours
        self._buffer = b""

    def fileno(self) -> int:
        """For ``selectors``."""
        return self._socket.fileno()

    def send(self, message: Message) -> bool:
        """Send one message; False when the child is gone."""
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self) -> tuple[list[Message], bool]:
        """The messages that have arrived and whether the child is still there. Call when readable."""
        try:
            data = self._socket.recv(1 << 20)
        except OSError:
            data = b""
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        if os.fstat(self._log.fileno()).st_size > _LOG_LIMIT:
            self._log.truncate(0)
        return [json.loads(line) for line in lines], bool(data)

    def end(self, seconds: float = 2.0) -> str:
        """For a child whose socket has closed: how it ended, and the last lines it printed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=seconds)
        ended = self._process.poll()
        words = self._last_words()
        self.stop()
        how = "it closed its pipe" if ended is None else _how(ended)
        return f"{how}: {words}" if words else how

    def stop(self) -> None:
        """Kill the group, reap it, free what is held here. May be called again."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._socket.close()
        self._log.close()

    def _last_words(self, lines: int = 6) -> str:
        self._log.seek(max(0, os.fstat(self._log.fileno()).st_size - 4096))
        text = self._log.read().decode(errors="replace")
        return "\n".join(text.strip().splitlines()[-lines:])[-2000:]

    def close(self) -> None:
        """Let an idle child end by itself, then make sure."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
        self.stop()


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


class Parent:
    """The child's side: messages from the parent, answers to it."""

    def __init__(self, descriptor: int, parent: int) -> None:
        _die_with(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
        self._socket = socket.socket(fileno=descriptor)
        self._file = self._socket.makefile("rb")

    def __iter__(self) -> Iterator[Message]:
        for line in self._file:
            yield json.loads(line)

    def send(self, message: Message) -> None:
        """Send one message."""
        self._socket.sendall(json.dumps(message).encode() + b"\n")


def _die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends (Linux); end at once if it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)
