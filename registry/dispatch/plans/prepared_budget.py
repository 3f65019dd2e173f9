"""How many bytes prepared weights may hold on a device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from ...device import Device
from ...errors import InvalidArgumentError

VARIABLE = "KERNEL_REGISTRY_PREPARED_BYTES"

SHARE = 0.25
"""Of a device's memory, where nobody says a number."""


class PreparedBudget:
    """``given``: bytes for each device; None for what ``KERNEL_REGISTRY_PREPARED_BYTES`` says, if it does."""

    def __init__(self, given: int | None = None) -> None:
        self.given = given

    def of(self, device: torch.device) -> int:
        """Bytes for ``device``; without a number a quarter of its memory. Raises InvalidArgumentError."""
        given = given_bytes() if self.given is None else self.given
        return int(SHARE * Device.of(device).memory_bytes) if given is None else given


def given_bytes(environ: Mapping[str, str] = os.environ) -> int | None:
    """What ``KERNEL_REGISTRY_PREPARED_BYTES`` says, if it says something. Raises InvalidArgumentError."""
    text = environ.get(VARIABLE, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise InvalidArgumentError(f"{VARIABLE}={text!r:.80}", hint=_HINT)
    return int(text)


def checked_bytes(given: Any) -> int | None:
    """``given``, or InvalidArgumentError."""
    if given is not None and (type(given) is not int or given < 0):
        raise InvalidArgumentError(f"configure(prepared_bytes={given!r:.80})", hint=_HINT)
    return given


_HINT = "expected a number of bytes for each device, e.g. 8589934592; nothing stands for a quarter of its memory"
