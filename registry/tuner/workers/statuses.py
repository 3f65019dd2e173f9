"""The status of a trial that raised a fault."""

from __future__ import annotations

import re

from ...errors import CompileError, OutOfResourcesError, RegistryError, UnsupportedError
from ...faults.device_faults import out_of_memory
from ...faults.host_faults import host_fault
from ..verify.verdicts import WrongError

_OTHERS = re.compile(r" Including non-PyTorch memory.*", re.DOTALL)
"""What torch adds to an error about GPU memory: a sentence for each process on the GPU, and advice about settings."""


def status_of(fault: BaseException) -> tuple[str, str]:
    """The status and the message of a fault."""
    message = fault.message if isinstance(fault, RegistryError | WrongError) else f"{type(fault).__name__}: {fault}"
    message = _OTHERS.sub("", message)
    if isinstance(fault, WrongError):
        return fault.status, message
    return _status(fault), message[:2000]


def _status(fault: BaseException) -> str:
    """The status of a fault; ``error`` for any fault of the machine, so that the next run tries the candidate again."""
    if isinstance(fault, OutOfResourcesError):
        return "out_of_resources"
    if isinstance(fault, UnsupportedError):
        return "unsupported"
    if out_of_memory(fault):
        return "out_of_memory"
    return "compile_error" if isinstance(fault, CompileError) and not host_fault(fault) else "error"
