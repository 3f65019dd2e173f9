"""A child process that is spoken to in JSON lines over one socket, and killed with its whole group."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from . import spawning
from .spawning import Command, Ending

Message = Mapping[str, Any]

_LOG_LIMIT = 1 << 20
_LONGEST_LINE = 64 << 20
_PR_SET_PDEATHSIG = 1
_GONE_S = 20.0
_LAST_LINES = 6


class Child:
    """``python -m module`` in a process group of its own; its stdout and stderr go to a capped file.

    Not ``multiprocessing``: its spawn imports the user's script again, and one abort breaks every future of a pool.
    ``memory_bytes``: killed when it holds more (0: no limit). ``fresh``: executed, not forked from a template.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        *,
        memory_bytes: int = 0,
        fresh: bool = False,
    ) -> None:
        ours, theirs = socket.socketpair()
        # deleted by name at once; appending, so that truncating it while the child writes is safe
        self._log = tempfile.TemporaryFile(mode="a+b")  # noqa: SIM115
        command = Command(module, tuple(arguments), environment, memory_bytes, fresh)
        try:
            with theirs:
                self._started = spawning.start(command, theirs, self._log)
        except BaseException:
            ours.close()
            self._log.close()
            raise
        ours.setblocking(False)
        self._socket = ours
        self._buffer = bytearray()
        self._unsent = bytearray()
        self._nonsense = ""

    @property
    def pid(self) -> int:
        """The process id; the first access waits until the process has started."""
        return self._started.pid

    @property
    def how(self) -> str:
        """``forked`` from a template, or ``executed`` and why, where that is news; waits until it is started."""
        return self._started.how

    def fileno(self) -> int:
        """The socket's descriptor, for ``selectors``."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether something waits for room in the socket: then also watch for writing, and call :meth:`flush`."""
        return bool(self._unsent)

    def send(self, message: Message) -> None:
        """Send one message, without waiting for a child that does not read."""
        self._unsent += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send as much as the socket has room for; nothing to a child that has ended, which ``receive`` notices."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()

    def receive(self) -> tuple[list[Message], bool]:
        """The messages that have arrived, and whether more may come: not after a bad message or the child's end."""
        try:
            data = self._socket.recv(1 << 20)
        except BlockingIOError:
            return [], True
        except OSError:
            data = b""
        self._buffer += data
        if os.fstat(self._log.fileno()).st_size > _LOG_LIMIT:
            self._log.truncate(0)
        messages: list[Message] = []
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = rest
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if not isinstance(message, dict):
                return messages, self._refuse(bytes(line))
            messages.append(message)
        if len(rest) > _LONGEST_LINE:
            return messages, self._refuse(bytes(rest))
        return messages, bool(data)

    def ended(self, seconds: float = 0.0) -> Ending | None:
        """How the child ended, waiting at most ``seconds``; None while it runs."""
        return self._started.ended(seconds)

    def end(self, seconds: float = 0.5) -> Ending:
        """Kill the rest of a child that sends nothing more; returns how and why it ended."""
        by_itself = None if self._nonsense else self._started.ended(seconds)
        words = self._last_words()
        self.stop()
        ending = by_itself or Ending(0, self._nonsense or "it closed its pipe")
        why = ending.why or _how(ending.code)
        return replace(ending, why=f"{why}: {words}" if words else why)

    def kill(self) -> None:
        """Kill the group, without waiting; ``stop`` has to follow."""
        self._started.kill()

    def stop(self) -> bool:
        """Kill the group, wait until it is reaped, free the socket and the log; returns whether it is gone.

        May be called again.
        """
        self._started.kill()
        gone = self._started.ended(_GONE_S) is not None
        self._started.close()
        self._socket.close()
        self._log.close()
        return gone

    def dismiss(self) -> None:
        """Let an idle child end by itself, without waiting; ``close`` has to follow."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Let an idle child end by itself within two seconds, else kill it."""
        self.dismiss()
        self._started.ended(2.0)
        self.stop()

    def _refuse(self, line: bytes) -> bool:
        self._nonsense = f"it sent what is no message: {line[:80]!r}"
        return False

    def _last_words(self) -> str:
        if self._log.closed:
            return ""
        self._log.seek(max(0, os.fstat(self._log.fileno()).st_size - 4096))
        text = self._log.read().decode(errors="replace")
        return "\n".join(text.strip().splitlines()[-_LAST_LINES:])[-2000:]


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


class Parent:
    """A child's connection to its parent: reads messages, sends answers."""

    def __init__(self, descriptor: int, parent: int) -> None:
        _die_with(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
        os.set_inheritable(descriptor, False)
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
