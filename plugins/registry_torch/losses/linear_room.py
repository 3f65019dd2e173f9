"""Room for all logits of a linear layer: what may hold them, and from when on chunks are the default."""

from __future__ import annotations

from collections.abc import Iterator

from registry.device import Device
from registry.problem import Problem

_SHARE = 64
"""Logits may take one part in this many of the device's memory, or tuning would choose speed where room was wanted."""
_LARGE = 2**24
"""Logits from which on a chunk at a time is the default."""


def room_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why all logits cannot be held: in their dtype, and in float32 for the loss."""
    each = problem.torch_dtype.itemsize
    needed = problem.rows * problem.cols * (each + max(4, each))
    if needed > device.memory_bytes // _SHARE:
        yield (
            f"all logits, {problem.rows} x {problem.cols}, take {needed / 2**30:.1f} GiB, more than 1/{_SHARE} of the"
            f" device's {device.memory_bytes / 2**30:.0f}"
        )


def chunks_preference(problem: Problem) -> float:
    """The preference of a form by chunks: before torch.native where all logits would be many, else after it."""
    return 0.5 if problem.rows * problem.cols > _LARGE else -0.5
