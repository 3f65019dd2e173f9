"""The program behind bubblewrap: binds one implementation, and runs it on the slots that it is asked for.

``python -m registry.sandbox.child DESCRIPTOR LIMITS``. Nothing here is trusted once the implementation is imported.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..device import Device
from ..tuner.workers.statuses import status_of
from . import wire
from .limits import limit_this_process
from .memory.opening import opened
from .memory.shared_memory import SharedMemory
from .placed import BoundEntrant, PlacedCalls, in_two_threads, refused_as

_LONGEST_MESSAGE = 2000


class Subject:
    """The implementation in this process, and the calls that it is bound for, by number."""

    def __init__(self) -> None:
        self._entrant: BoundEntrant | None = None
        self._memories: list[SharedMemory] = []
        self._placed: dict[int, PlacedCalls] = {}
        self._chosen = 0

    def answered(self, message: Mapping[str, Any], descriptor: int) -> dict[str, str | bool]:
        """Do what a message says."""
        do = message["do"]
        if do == "load":
            self._entrant = BoundEntrant(message)
        elif do == "memory":
            self._memories.append(opened(descriptor, message["bytes"], self._device.torch))
        elif do == "slots":
            return self._place(message)
        else:
            self._chosen = message["which"]
            if do == "weights":
                self._placed[self._chosen].prepare()
            elif do == "threads":
                in_two_threads(self._placed[self._chosen], message, self._memories[message["memory"]].bytes)
        return {"ok": True}

    @property
    def _device(self) -> Device:
        assert self._entrant is not None
        return self._entrant.device

    def _place(self, message: Mapping[str, Any]) -> dict[str, str | bool]:
        assert self._entrant is not None
        self._chosen = message["which"]
        memory, like = self._memories[message["memory"]].bytes, self._placed.get(message["like"])
        try:
            made = PlacedCalls.of(self._entrant, message, memory, like)
        except Exception as fault:
            # the problem that it entered for has to be run; what it says of others is heard
            if not self._placed or not (reason := refused_as(fault)):
                raise
            return {"ok": True, "refused": reason[:_LONGEST_MESSAGE]}
        self._placed[self._chosen] = made
        return {"ok": True, "prepares": made.prepares, "deterministic": self._entrant.implementation.deterministic}

    def run(self, first: int, count: int) -> None:
        """Run on ``count`` slots of the chosen calls from ``first`` on."""
        self._placed[self._chosen].run(first, count)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device.torch)


def _guarded(end: socket.socket, do: Callable[[], Mapping[str, str | bool] | bytes]) -> None:
    """Send what ``do`` returns, or the fault that it raised."""
    try:
        found = do()
    except BaseException as fault:  # whatever a stranger's code raises is its outcome
        status, message = status_of(fault)
        found = {"ok": False, "status": status, "message": message[:_LONGEST_MESSAGE]}
    if isinstance(found, bytes):
        end.send(found)
    else:
        wire.send(end, found)


def main(arguments: Sequence[str]) -> None:
    """Answer packets until the other side goes."""
    limit_this_process(json.loads(arguments[1]))
    end = socket.socket(fileno=int(arguments[0]))
    subject = Subject()
    with torch.no_grad():
        while True:
            message, done, first, count, descriptor = wire.received_by_sandbox(end)
            if message is None:
                _guarded(end, lambda: _run(subject, first, count, done))  # noqa: B023 (called before the next packet)
            else:
                _guarded(end, lambda: subject.answered(message, descriptor))  # noqa: B023


def _run(subject: Subject, first: int, count: int, done: bytes) -> bytes:
    subject.run(first, count)
    return done


if __name__ == "__main__":
    main(sys.argv[1:])
