"""The part of a GPU's L2 cache that is set aside for windows of addresses, whose content survives a flush."""

from __future__ import annotations

import ctypes

import torch

from .capture import cuda_driver

_PERSISTING_L2_CACHE_SIZE = 6
"""CU_LIMIT_PERSISTING_L2_CACHE_SIZE; 0 unless it was set."""


def persisting_bytes() -> int:
    """Bytes of the current GPU's L2 cache that are set aside; 0 where there is no GPU, or none that can."""
    found, size = _cuda(), ctypes.c_size_t(0)
    if found is None or found.cuCtxGetLimit(ctypes.byref(size), _PERSISTING_L2_CACHE_SIZE):
        return 0
    return size.value


def keep_persisting(nbytes: int) -> None:
    """Set ``nbytes`` of the cache aside, and let the content that has persisted so far go."""
    found = _cuda()
    if found is not None:
        found.cuCtxSetLimit(_PERSISTING_L2_CACHE_SIZE, ctypes.c_size_t(nbytes))
        found.cuCtxResetPersistingL2Cache()


def _cuda() -> ctypes.CDLL | None:
    """The driver, where this process has a context: without one there is no limit to ask for."""
    return cuda_driver() if torch.cuda.is_initialized() else None
