"""Faults that tell of a machine's state rather than of the code that met them: scarce memory, a broken GPU context.

Each layer words them in its own way: torch in classes of its own, the CUDA driver, cuda.core and NVRTC by the names of
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
"""Codes after which every further call of a CUDA context fails: sentences of ``cuGetErrorString``, and names."""


def out_of_memory(fault: BaseException) -> bool:
    """Whether memory of a GPU or of the machine was short, which may pass: of torch, Triton, the driver or the OS."""
    if isinstance(fault, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(fault, OSError):
        return fault.errno == errno.ENOMEM
    return _tells(fault, _MEMORY)


def broken_context(fault: BaseException) -> bool:
    """Whether the CUDA context of this process is lost, which a kernel may meet that an earlier one has caused."""
    return _tells(fault, _BROKEN)


def _tells(fault: BaseException, parts: tuple[str, ...]) -> bool:
    text = str(fault).lower()
    return any(part in text for part in parts)
