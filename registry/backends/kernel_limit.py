"""The limit of loaded kernels per process: kernels are never unloaded, since a captured graph may hold any."""

from __future__ import annotations

from ..errors import OutOfResourcesError

MOST_KERNELS = 4096
"""The most loaded kernels of each kind; one takes tens of KiB of host and device memory."""


def check_room(loaded: int, kind: str) -> None:
    """Raise OutOfResourcesError if ``MOST_KERNELS`` are loaded; ``kind`` is for the message, e.g. ``"CUDA"``."""
    if loaded >= MOST_KERNELS:
        raise OutOfResourcesError(
            f"this process has loaded {MOST_KERNELS} {kind} kernels, and keeps them: a captured graph may hold any",
            hint="kernels that are compiled for one size each do not suit sizes without end",
        )
