"""Recognises faults of the machine in a compiler's exceptions: a refused cache, a full disk, a killed compiler."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator

from ..errors import CacheError

_NUMBERS = frozenset(
    {
        errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE,
        errno.ESTALE, errno.ENOLCK, errno.EAGAIN, errno.ENOEXEC, errno.ETXTBSY, errno.EFBIG,
    }
)  # fmt: skip
_SENTENCES = (*(os.strerror(number).lower() for number in _NUMBERS), "cannot create temporary", "killed signal")
"""Sentences with which compilers report such faults; ``killed signal terminated program cc1plus`` is gcc's."""


def host_fault(fault: BaseException) -> bool:
    """True if an exception, or one that it was raised from, reports this machine's state, not a fault of the code."""
    return any(_of_host(each) for each in _chain(fault)) or isinstance(fault, OSError)


def _of_host(fault: BaseException) -> bool:
    if isinstance(fault, CacheError | subprocess.TimeoutExpired):
        return True
    if isinstance(fault, OSError):
        return fault.errno in _NUMBERS
    text = str(fault).lower()
    return any(sentence in text for sentence in _SENTENCES)


def _chain(fault: BaseException | None) -> Iterator[BaseException]:
    while fault is not None:
        yield fault
        fault = fault.__cause__ or (None if fault.__suppress_context__ else fault.__context__)
