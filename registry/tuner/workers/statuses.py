"""The status of a trial that raised a fault."""

from __future__ import annotations

import torch

from ...errors import CompileError, OutOfResourcesError, RegistryError, UnsupportedError
from ..verify.verdicts import WrongError

_STATUSES: tuple[tuple[type[BaseException], str], ...] = (
    (OutOfResourcesError, "out_of_resources"),
    (CompileError, "compile_error"),
    (UnsupportedError, "unsupported"),
    (torch.OutOfMemoryError, "out_of_memory"),
    (MemoryError, "out_of_memory"),
)
"""Exception type -> status; the first match counts, and any other fault is an ``error``."""


def status_of(fault: BaseException) -> tuple[str, str]:
    """The status and the message of a fault."""
    message = fault.message if isinstance(fault, RegistryError | WrongError) else f"{type(fault).__name__}: {fault}"
    if isinstance(fault, WrongError):
        return fault.status, message
    if isinstance(fault, RuntimeError) and "DefaultCPUAllocator" in message:
        return "out_of_memory", message[:2000]
    return next((status for kind, status in _STATUSES if isinstance(fault, kind)), "error"), message[:2000]
