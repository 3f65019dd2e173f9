"""The part of a GPU's L2 cache that is set aside for windows of addresses, whose content survives a flush."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable
from functools import cache

import torch

from .capture import cuda_driver

_PERSISTING_L2_CACHE_SIZE = 6
"""CU_LIMIT_PERSISTING_L2_CACHE_SIZE; 0 unless it was set."""
_OF_INTEGERS = frozenset({torch.int8, torch.uint8, torch.int32})
"""Types of operands of products of integers, and of words in which such operands are packed."""
_SIDE = 64


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


def use_integers(dtypes: Iterable[torch.dtype], device: torch.device) -> None:
    """Have cuBLAS make its first product of integers, if arguments of these types may be its operands on a GPU.

    At a process's first one it sets a part of the cache aside, which is then the fault of no candidate.
    """
    if device.type == "cuda" and not _OF_INTEGERS.isdisjoint(dtypes):
        _multiply_integers(device)


@cache
def _multiply_integers(device: torch.device) -> None:
    before = persisting_bytes()
    one, other = torch.zeros((2, _SIDE, _SIDE), dtype=torch.int8, device=device)
    # a GPU that cannot multiply them sets nothing aside
    with contextlib.suppress(RuntimeError):
        torch._int_mm(one, other)
    if persisting_bytes() != before:
        keep_persisting(before)


def _cuda() -> ctypes.CDLL | None:
    """The driver, where this process has a context: without one there is no limit to ask for."""
    return cuda_driver() if torch.cuda.is_initialized() else None
