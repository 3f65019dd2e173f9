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
