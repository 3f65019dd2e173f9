"""Shared memory of the host: an anonymous file that nobody can shrink, grow or find by a name."""

from __future__ import annotations

import mmap
import os

import torch

from .shared_memory import SharedMemory


class HostMemory(SharedMemory):
    """A sealed memory file, mapped."""

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, nbytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    @classmethod
    def made(cls, nbytes: int) -> HostMemory:
        """New memory, all of it there: a page that is missing later would end the process that touches it."""
        import fcntl  # not on Windows

        descriptor = os.memfd_create("slots", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
            # a file that the other side cuts off ends this process when it looks at what is gone
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            return cls(descriptor, nbytes)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def opened(cls, descriptor: int, nbytes: int) -> HostMemory:
        """The memory of a descriptor."""
        return cls(descriptor, nbytes)

    def close(self) -> None:
        # tensors that are left keep the mapping, not the file
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
