"""Recognises exceptions caused by the state of a GPU, not by the code that raised them: no memory, a lost CUDA context.

Each layer reports them in its own way: torch by exception classes, the CUDA driver, cuda.core and NVRTC by the names of
error codes, Triton by the driver's sentences.
"""

from __future__ import annotations

import errno

import torch

_MEMORY = (
    "out of memory",
    "out_of_memory",
    "errormemoryallocation",
    "defaultcpuallocator",
    "cannot allocate memory",
    "status_alloc_failed",
)

_BROKEN = (
    "illegal memory access",
    "illegal_address",
    "device-side assert",
    "cuda_error_assert",
    "unspecified launch failure",
    "cuda_error_launch_failed",
    "misaligned address",
    "misaligned_address",
    "illegal instruction",
    "illegal_instruction",
    "invalid program counter",
    "cuda_error_invalid_pc",
    "hardware stack error",
    "hardware_stack_error",
    "launch timed out",
    "launch_timeout",
    "global/shared address space",
    "invalid_address_space",
    "uncorrectable ecc",
    "ecc_uncorrectable",
    "uncorrectable nvlink",
    "context is destroyed",
    "context_is_destroyed",
    "driver shutting down",
)
"""Errors after which every further call in a CUDA context fails: sentences of ``cuGetErrorString``, and names."""


def out_of_memory(fault: BaseException) -> bool:
    """True if an exception of torch, Triton, the driver or the OS says that GPU or host memory was short."""
    if isinstance(fault, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(fault, OSError):
        return fault.errno == errno.ENOMEM
    return _tells(fault, _MEMORY)


def broken_context(fault: BaseException) -> bool:
    """True if an exception says that the CUDA context is lost; an earlier kernel may have caused that."""
    return _tells(fault, _BROKEN)


def _tells(fault: BaseException, parts: tuple[str, ...]) -> bool:
    text = str(fault).lower()
    return any(part in text for part in parts)
