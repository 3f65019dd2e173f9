"""Memory on a device of either kind: made to be shared, or opened where the other side has made it."""

from __future__ import annotations

import torch

from .cuda_memory import CudaMemory
from .host_memory import HostMemory
from .shared_memory import SharedMemory


def made(nbytes: int, device: torch.device) -> SharedMemory:
    """New memory on a device, to be shared."""
    if device.type == "cuda":
        return CudaMemory.made(nbytes, device.index or 0)
    return HostMemory.made(nbytes)


def opened(descriptor: int, nbytes: int, device: torch.device) -> SharedMemory:
    """The memory behind a descriptor that the other side sent."""
    if device.type == "cuda":
        return CudaMemory.opened(descriptor, nbytes, device.index or 0)
    return HostMemory.opened(descriptor, nbytes)
