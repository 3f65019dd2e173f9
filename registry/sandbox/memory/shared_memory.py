"""Memory that a sandbox shares with the trusted process, which makes it; each side gets it as an open file."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch


class SharedMemory(ABC):
    """Bytes that two processes see."""

    bytes: torch.Tensor
    """The memory, as one row of uint8; not to be used after ``close``."""

    descriptor: int
    """The open file by which another process maps it, -1 once it is closed."""

    @abstractmethod
    def close(self) -> None:
        """Give this process's part back. May be called again."""


def made(nbytes: int, device: torch.device) -> SharedMemory:
    """New memory on a device, to be shared."""
    if device.type == "cuda":
        from .cuda_memory import CudaMemory

        return CudaMemory.made(nbytes, device.index or 0)
    from .host_memory import HostMemory

    return HostMemory.made(nbytes)


def opened(descriptor: int, nbytes: int, device: torch.device) -> SharedMemory:
    """The memory behind a descriptor that the other side sent."""
    if device.type == "cuda":
        from .cuda_memory import CudaMemory

        return CudaMemory.opened(descriptor, nbytes, device.index or 0)
    from .host_memory import HostMemory

    return HostMemory.opened(descriptor, nbytes)
