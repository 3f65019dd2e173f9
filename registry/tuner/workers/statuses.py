"""The status of a trial that raised a fault."""

from __future__ import annotations

from ...errors import CompileError, OutOfResourcesError, RegistryError, UnsupportedError
from ...faults.device_faults import out_of_memory
from ..verify.verdicts import WrongError

_STATUSES: tuple[tuple[type[BaseException], str], ...] = (
    (OutOfResourcesError, "out_of_resources"),
    (CompileError, "compile_error"),
    (UnsupportedError, "unsupported"),
)
"""Exception type -> status; the first match counts, and what is neither that nor short of memory is an ``error``."""


def status_of(fault: BaseException) -> tuple[str, str]:
    """The status and the message of a fault."""
    message = fault.message if isinstance(fault, RegistryError | WrongError) else f"{type(fault).__name__}: {fault}"
    if isinstance(fault, WrongError):
        return fault.status, message
    known = next((status for kind, status in _STATUSES if isinstance(fault, kind)), "")
    return known or ("out_of_memory" if out_of_memory(fault) else "error"), message[:2000]
