"""A filter of system calls (seccomp) for sandboxes: what no kernel needs, and what attacks on the system began with.

A list of what is refused, not of what is allowed: a GPU's driver, compilers and torch use several hundred others.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Mapping
from dataclasses import dataclass

_X86_64: Mapping[str, int] = {
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "pidfd_getfd": 438,
    "bpf": 321, "userfaultfd": 323, "perf_event_open": 298,
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "add_key": 248, "request_key": 249, "keyctl": 250,
    "unshare": 272, "setns": 308, "chroot": 161, "pivot_root": 155,
    "mount": 165, "umount2": 166, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431,
    "fsmount": 432, "fspick": 433, "mount_setattr": 442, "open_by_handle_at": 304, "quotactl": 179,
    "init_module": 175, "finit_module": 313, "delete_module": 176, "kexec_load": 246, "kexec_file_load": 320,
    "swapon": 167, "swapoff": 168, "reboot": 169, "acct": 163, "syslog": 103, "personality": 135,
    "settimeofday": 164, "clock_settime": 227, "adjtimex": 159, "clock_adjtime": 305,
    "iopl": 172, "ioperm": 173, "modify_ldt": 154, "uselib": 134,
}  # fmt: skip
_AARCH64: Mapping[str, int] = {
    "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "pidfd_getfd": 438,
    "bpf": 280, "userfaultfd": 282, "perf_event_open": 241,
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "add_key": 217, "request_key": 218, "keyctl": 219,
    "unshare": 97, "setns": 268, "chroot": 51, "pivot_root": 41,
    "mount": 40, "umount2": 39, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431,
    "fsmount": 432, "fspick": 433, "mount_setattr": 442, "open_by_handle_at": 265, "quotactl": 60,
    "init_module": 105, "finit_module": 273, "delete_module": 106, "kexec_load": 104, "kexec_file_load": 294,
    "swapon": 224, "swapoff": 225, "reboot": 142, "acct": 89, "syslog": 116, "personality": 92,
    "settimeofday": 170, "clock_settime": 112, "adjtimex": 171, "clock_adjtime": 266,
}  # fmt: skip


@dataclass(frozen=True)
class CallNumbers:
    """Numbers of an architecture: its own (AUDIT_ARCH), of the calls that are refused, of those that make processes."""

    architecture: int
    refused: Mapping[str, int]
    clone: int
    clone3: int = 435


MACHINES: Mapping[str, CallNumbers] = {
    "x86_64": CallNumbers(0xC000003E, _X86_64, 56),
    "aarch64": CallNumbers(0xC00000B7, _AARCH64, 220),
}
"""Numbers of calls by the name that Python gives the machine."""

_OTHER_FORM = 0x40000000
"""From this number on x86-64 has all calls a second time, for pointers of 32 bits."""
_NEW_USER = 0x10000000
"""The flag of clone for a new user namespace."""

_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
ALLOWED, REFUSED, UNKNOWN_CALL = 0x7FFF0000, 0x00050001, 0x00050026
"""Answers: go on, EPERM, ENOSYS."""

_ENDS = ("allow", "refuse", "unknown")
_STEP = struct.Struct("=HBBI")


def filter_program(machine: str = platform.machine()) -> bytes:
    """The filter as instructions of the kernel's packet filter, b"" for a machine whose numbers are not known.

    clone3 is answered as on a kernel that lacks it: its flags are in memory, where no filter looks; libraries then use
    clone.
    """
    if machine not in MACHINES:
        return b""
    numbers = MACHINES[machine]
    # code, where to go on if it holds, and if not ("" is the next step), value
    steps = [
        (_LOAD, "", "", _ARCHITECTURE),
        (_IF_EQUAL, "", "refuse", numbers.architecture),
        (_LOAD, "", "", _NUMBER),
        (_IF_AT_LEAST, "refuse", "", _OTHER_FORM),
        *((_IF_EQUAL, "refuse", "", number) for number in sorted(numbers.refused.values())),
        (_IF_EQUAL, "unknown", "", numbers.clone3),
        (_IF_EQUAL, "", "allow", numbers.clone),
        (_LOAD, "", "", _FIRST_ARGUMENT),
        (_IF_ANY_BIT, "refuse", "allow", _NEW_USER),
    ]
    ends = {name: len(steps) + place for place, name in enumerate(_ENDS)}

    def steps_to(name: str, here: int) -> int:
        return ends[name] - here - 1 if name else 0

    program = [
        _STEP.pack(code, steps_to(then, here), steps_to(otherwise, here), value)
        for here, (code, then, otherwise, value) in enumerate(steps)
    ]
    return b"".join([*program, *(_STEP.pack(_RETURN, 0, 0, one) for one in (ALLOWED, REFUSED, UNKNOWN_CALL))])
