"""Checks whose results are still on the device: enqueued one after the other, read at once."""

from __future__ import annotations

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
    """Flags on the device, each with the message for a flag that is not set.

    Reading a flag makes the host wait for the stream, so all are read at once. It waits for this stream only: a
    candidate's work on another stream must not get time to finish.
    """

    _flags: list[torch.Tensor] = field(default_factory=list)
    _reasons: list[tuple[str, Explain]] = field(default_factory=list)

    def add(self, flags: Flags, status: str, reason: str | Explain) -> None:
        """Require all ``flags`` to be true; else the trial gets ``status`` for that ``reason``."""
        if not flags:
            return
        self._flags.append(flags[0] if len(flags) == 1 else torch.stack(tuple(flags)).all())
        self._reasons.append((status, (lambda: reason) if isinstance(reason, str) else reason))

    def settle(self) -> None:
        """Wait for the flags; raises WrongError for the first that is not set and has a reason."""
        flags, reasons = self._flags, self._reasons
        self._flags, self._reasons = [], []
        if not flags:
            return
        for held, (status, explain) in zip(torch.stack(flags).tolist(), reasons, strict=True):
            if not held and (message := explain()):
                raise WrongError(status, message)
