"""A program in a sandbox as its parent sees it: started, spoken to, stopped between requests, and ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from time import perf_counter_ns

from ..errors import SandboxError
from ..tuner.verify.verdicts import WrongError
from ..untrusted.visible import visible
from . import wire
from .bubblewrap import SandboxView, bubblewrap, options_of
from .control_group import ControlGroup
from .freezing import FreezingError, ProcessTree
from .launching import settings, started
from .limits import SandboxLimits, memory_is_short

_LOOK_S = 0.2
_END_S = 30.0
_MOST_WORDS = 4096
_LONGEST_MESSAGE = 600
_GIB = 1 << 30


class EntrantError(WrongError):
    """What a sandboxed program is refused for. ``status``: of a trial, such as ``crash`` or ``timeout``."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(status, visible(message[:_LONGEST_MESSAGE]))


class SandboxedProgram:
    """``python -m module DESCRIPTOR LIMITS`` behind bubblewrap, which is stopped unless an answer is waited for.

    Raises SandboxError where no sandbox can be made, and EntrantError, with which the program is over, for all that it
    does wrong.
    """

    def __init__(
        self, module: str, view: SandboxView, environment: Mapping[str, str], limits: SandboxLimits, *, is_gpu: bool
    ) -> None:
        program = bubblewrap()
        arguments = [*options_of(program), *view.arguments(), *settings(environment)]
        self._limits = limits
        self._words = bytearray()
        self._group = ControlGroup.made(limits)
        self._end, theirs = wire.pair()
        self._output, writes = os.pipe()
        os.set_blocking(self._output, False)
        told = json.dumps({**limits.as_data(), "is_gpu": is_gpu})
        command = [sys.executable, "-P", "-m", module, str(theirs.fileno()), told]
        try:
            with theirs:
                self._process, root = started(program, arguments, command, theirs.fileno(), writes, self._group)
            if not root:
                raise SandboxError(f"--sandbox: bubblewrap started nothing: {self._last_line() or 'it gave no reason'}")
        except BaseException:
            self._close()
            raise
        finally:
            os.close(writes)
        self._tree = ProcessTree(root)
        self._is_over = False

    @property
    def limited_by(self) -> str:
        """The limit of memory: a ``control group`` for all processes together, ``resource limits`` for each."""
        return self._group.told if self._group else "resource limits"

    def ask(self, message: wire.Packet, seconds: float, descriptor: int | None = None) -> dict[str, str | bool]:
        """Send a message and return the answer."""
        self._send(message, descriptor)
        self._tree.thaw()
        found = self._received(seconds)
        self._freeze()
        return self._told(found)

    def run(self, first: int, count: int) -> float:
        """Request a run on slots; returns the µs from when it may begin until it says that it has ended.

        The request lies ready before the program may go on. Afterwards it still runs, until ``stop``.
        """
        request, expected = wire.run_request(first, count)
        self._send_bytes(request)
        began = perf_counter_ns()
        self._tree.thaw()
        found = self._received(self._limits.run_s)
        elapsed = perf_counter_ns() - began
        if found != expected:
            self._told(found)
            self.refuse("error", "it answered another request than it was asked")
        return elapsed / 1e3

    def stop(self) -> None:
        """Stop all processes of the program."""
        self._freeze()

    def refuse(self, status: str, message: str) -> None:
        """End the program, and raise EntrantError."""
        self.close()
        raise EntrantError(status, message)

    def close(self) -> None:
        """End all processes of the program, and free its memory and descriptors. May be called again."""
        if self._is_over:
            return
        self._is_over = True
        if self._process.poll() is None:  # else its number may be another's
            self._tree.kill()
        # bubblewrap ends when all processes of the namespace have
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._process.kill()
        self._process.wait()
        self._close()

    def _close(self) -> None:
        self._end.close()
        os.close(self._output)
        if self._group is not None:
            self._group.remove()

    def _send(self, message: wire.Packet, descriptor: int | None) -> None:
        with contextlib.suppress(OSError):  # it has ended, which waiting for the answer finds
            wire.send(self._end, message, descriptor)

    def _send_bytes(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self._end.send(data)

    def _freeze(self) -> None:
        if self._process.poll() is not None:
            self._refuse_dead()
        try:
            self._check_number(self._tree.freeze())
        except FreezingError as fault:
            self.refuse("error", f"it cannot be stopped: {fault}")

    def _check_number(self, processes: int) -> None:
        # to root the kernel sets no limit but that of a control group
        if processes > self._limits.processes:
            self.refuse("error", f"it runs {processes} processes, {self._limits.processes} at most are allowed")

    def _received(self, seconds: float) -> bytes:
        """The next packet. Ends the program, and raises EntrantError, if none comes in time."""
        looked = time.monotonic()
        until = looked + seconds
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        poll.register(self._output, select.POLLIN)
        while True:
            left = until - time.monotonic()
            ready = dict(poll.poll(max(0.0, min(left, _LOOK_S)) * 1e3))
            if self._output in ready:
                self._hear(poll)
            if self._end.fileno() in ready:
                try:
                    data = wire.received_from_sandbox(self._end)
                except wire.WireError as fault:
                    self.refuse("error", str(fault))
                except OSError:
                    data = b""
                if data:
                    return data
                poll.unregister(self._end)
            if self._process.poll() is not None:
                self._refuse_dead()
            if left <= 0:
                self.refuse("timeout", f"it did not answer within {seconds:.0f} s")
            # also of a program that prints all the time
            if time.monotonic() - looked >= _LOOK_S:
                looked = time.monotonic()
                self._check_number(self._tree.size)
                if memory_is_short():
                    self.refuse("out_of_memory", "the machine has nearly no memory left while it runs")

    def _hear(self, poll: select.poll) -> None:
        """Read what the program has printed, of which the end is kept."""
        try:
            said = os.read(self._output, 1 << 16)
        except OSError:
            said = b""
        if not said:
            poll.unregister(self._output)
        self._words += said
        del self._words[:-_MOST_WORDS]

    def _refuse_dead(self) -> None:
        code = self._process.returncode
        if self._group is not None and self._group.ran_out:
            self.refuse("out_of_memory", f"it took more than {self._limits.memory_bytes / _GIB:.3g} GiB of memory")
        last = self._last_line()
        self.refuse("crash", f"its process ended: {_how(code)}{last and f': {last}'}")

    def _last_line(self) -> str:
        """The last line that the program has printed, "" for none."""
        poll = select.poll()
        poll.register(self._output, select.POLLIN)
        if poll.poll(0):
            self._hear(poll)
        lines = self._words.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def _told(self, data: bytes) -> dict[str, str | bool]:
        """An answer that is none of a fault; else ends the program and raises EntrantError."""
        try:
            found = wire.answer(data)
        except wire.WireError as fault:
            self.refuse("error", str(fault))
        if found.get("ok") is not True:
            status, message = found.get("status"), found.get("message")
            known = isinstance(status, str) and status in _STATUSES
            self.refuse(str(status) if known else "error", str(message))
        return found


_STATUSES = frozenset({
    "unsupported", "compile_error", "out_of_resources", "wrong_result", "nondeterministic", "out_of_memory", "error",
})  # fmt: skip
"""Statuses that a sandboxed program may give itself."""


def _how(code: int) -> str:
    """An exit code in words; bubblewrap passes a signal on as 128 and its number."""
    number = -code if code < 0 else code - 128
    with contextlib.suppress(ValueError):
        if number > 0:
            return signal.Signals(number).name
    return f"exit code {code}"
