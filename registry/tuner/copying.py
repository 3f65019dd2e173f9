"""The copy floor: a device copy that moves as many bytes as the problem must, timed like any candidate."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..device import Device
from .protocol import Protocol
from .samplers import Launch, copies_of


def copy_launches(floor_bytes: int, device: Device, protocol: Protocol) -> tuple[list[Launch], int]:
    """One copy of ``floor_bytes / 2`` per rotating pair of buffers, and the working set in bytes."""
    half = max(4, floor_bytes // 8 * 4)
    count = copies_of(2 * half, protocol)
    sources = [torch.ones(half // 4, device=device.torch) for _ in range(count)]
    return [_copy(torch.empty_like(source), source) for source in sources], 2 * half


def _copy(target: torch.Tensor, source: torch.Tensor) -> Callable[[], object]:
    return lambda: target.copy_(source)
