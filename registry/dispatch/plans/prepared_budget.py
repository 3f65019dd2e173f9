"""The budget of prepared weights: the most bytes that they may hold on a device."""

from __future__ import annotations

import os
from typing import Any

import torch

from ...device import Device
from ...errors import InvalidArgumentError

VARIABLE = "KERNEL_REGISTRY_PREPARED_BYTES"

SHARE = 0.25
"""The default budget, as a part of a device's memory."""


class PreparedBudget:
    """The budget. ``given``: bytes per device; None for ``KERNEL_REGISTRY_PREPARED_BYTES``, else the default."""

    def __init__(self) -> None:
        self.given: int | None = None

    def of(self, device: torch.device) -> int:
        """The budget of ``device`` in bytes. Raises InvalidArgumentError for a bad environment variable."""
        given = given_bytes() if self.given is None else self.given
        return int(SHARE * Device.of(device).memory_bytes) if given is None else given


def given_bytes() -> int | None:
    """The bytes in ``KERNEL_REGISTRY_PREPARED_BYTES``, None if it is unset. Raises InvalidArgumentError."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise InvalidArgumentError(f"{VARIABLE}={text!r:.80}", hint=_HINT)
    return int(text)


def checked_bytes(given: Any) -> int | None:
    """``given``. Raises InvalidArgumentError unless it is None or a number of bytes."""
    if given is not None and (type(given) is not int or given < 0):
        raise InvalidArgumentError(f"configure(prepared_bytes={given!r:.80})", hint=_HINT)
    return given


_HINT = "expected a number of bytes for each device, e.g. 8589934592; nothing stands for a quarter of its memory"
