"""Checks whose results are still on the device: enqueued one after the other, read at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch


class WrongError(Exception):
    """A candidate that is wrong. ``status`` is ``wrong_result``, ``nondeterministic`` or ``error``."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


Flags = Sequence[torch.Tensor]
"""Tensors of one truth value each, on the device."""

Explain = Callable[[], str]
"""Returns the fault after a close look, "" when the result is right after all."""


@dataclass
class Checks:
    """Flags on the device, with the message for those of an ``add`` of which one is not set.

    Reading a flag makes the host wait for the stream, so all are read at once. It waits for this stream only: a
    candidate's work on another stream must not get time to finish.
    """

    _flags: list[torch.Tensor] = field(default_factory=list)
    _reasons: list[tuple[int, str, Explain]] = field(default_factory=list)
    """For each ``add`` the number of its flags, the status and the message."""

    def add(self, flags: Flags, status: str, reason: str | Explain) -> None:
        """Require all ``flags`` to be true; else the trial gets ``status`` for that ``reason``."""
        if not flags:
            return
        self._flags += flags
        self._reasons.append((len(flags), status, (lambda: reason) if isinstance(reason, str) else reason))

    def settle(self) -> None:
        """Wait for the flags; raises WrongError for the first that is not set and has a reason."""
        flags, reasons = self._flags, self._reasons
        self._flags, self._reasons = [], []
        if not flags:
            return
        read = iter(torch.stack(flags).tolist())
        for count, status, explain in reasons:
            held = all(list(itertools.islice(read, count)))
            if not held and (message := explain()):
                raise WrongError(status, message)
