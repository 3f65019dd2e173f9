"""Faults of the machine that a compiler meets are told apart from those of the code."""

from __future__ import annotations

import errno
import subprocess

import pytest

from registry.errors import CacheError, CompileError, OutOfResourcesError
from registry.faults.host_faults import host_fault


def raised_from(cause: BaseException, *, suppressed: bool = False) -> BaseException:
    try:
        try:
            raise cause
        except BaseException as fault:
            raise CompileError("it does not compile") from (None if suppressed else fault)
    except CompileError as fault:
        return fault


@pytest.mark.parametrize(
    "fault",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        FileNotFoundError(errno.ENOENT, "No such file or directory"),
        CacheError("the cache belongs to another"),
        CompileError("k: fatal error: error writing to /tmp/ccX.s: No space left on device"),
        CompileError("k: collect2: error: ld returned 1", hint="/usr/bin/ld: final link failed: Disk quota exceeded"),
        CompileError("k: c++: fatal error: Killed signal terminated program cc1plus"),
        CompileError("k: Cannot create temporary file in /tmp/: Read-only file system"),
        raised_from(PermissionError(errno.EACCES, "Permission denied")),
        raised_from(subprocess.TimeoutExpired("c++", 300)),
        raised_from(raised_from(OSError(errno.EMFILE, "Too many open files"))),
    ],
    ids=lambda fault: str(fault)[:40],
)
def test_a_fault_of_the_machine_is_one_however_it_is_wrapped(fault: BaseException) -> None:
    assert host_fault(fault)


@pytest.mark.parametrize(
    "fault",
    [
        CompileError("k.cpp:3: error: expected ';'"),
        CompileError("k.cu(1): fatal error: absent.h: No such file or directory"),
        OutOfResourcesError("k needs 300000 bytes of shared memory"),
        ValueError("no such option"),
        raised_from(FileNotFoundError(errno.ENOENT, "No such file or directory")),
        raised_from(OSError(errno.ENOSPC, "No space left on device"), suppressed=True),
    ],
    ids=lambda fault: str(fault)[:40],
)
def test_a_fault_of_the_code_is_none(fault: BaseException) -> None:
    assert not host_fault(fault)
