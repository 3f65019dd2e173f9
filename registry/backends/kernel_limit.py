"""How many kernels of one kind a process loads: none is unloaded, since a captured graph may hold any."""

from __future__ import annotations

from ..errors import OutOfResourcesError

MOST_KERNELS = 4096
"""Of each kind; a kernel takes some tens of KiB of host and device."""


def check_room(loaded: int, kind: str) -> None:
    """Raise OutOfResourcesError for one more than ``MOST_KERNELS``; ``kind`` as a person reads it, e.g. ``"CUDA"``."""
    if loaded >= MOST_KERNELS:
        raise OutOfResourcesError(
            f"this process has loaded {MOST_KERNELS} {kind} kernels, and keeps them: a captured graph may hold any",
            hint="kernels that are compiled for one size each do not suit sizes without end",
        )
