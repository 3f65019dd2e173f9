"""What this machine's x86-64 CPU has: instruction sets by Linux's names, and the kernel's permission to use AMX."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from functools import lru_cache
from pathlib import Path

import torch

from registry.errors import UnsupportedError

_REQUEST_PERMISSION = 0x1023
"""arch_prctl's ARCH_REQ_XCOMP_PERM (Linux 5.16, asm/prctl.h)."""
_TILE_DATA = 18
"""The state component of the tiles' contents, XFEATURE_XTILEDATA."""
_SYS_ARCH_PRCTL = 158


@lru_cache(maxsize=1)
def cpu_features() -> frozenset[str]:
    """The instruction sets of this CPU that the system lets programs use: ``avx2``, ``avx512_vnni``, ``amx_int8``.

    By /proc/cpuinfo; where that is missing, AVX2 alone if torch found it. Empty on anything but x86-64.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()
    try:
        told = re.search(r"^flags\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        told = None
    if told:
        return frozenset(told.group(1).split())
    return frozenset({"avx2"} if "AVX" in torch.backends.cpu.get_cpu_capability() else ())


def missing(*needed: str) -> str:
    """Why these instruction sets cannot be used here, ``"this CPU has no amx_int8 (…)"``; "" if it has all of them."""
    absent = [name for name in needed if name not in cpu_features()]
    if not absent:
        return ""
    kind = platform.processor() or platform.machine()
    return f"this CPU ({kind}) has no {' and no '.join(absent)}"


@lru_cache(maxsize=1)
def amx_refusal() -> str:
    """Why this process may not use AMX tiles; "" after the kernel has permitted it.

    Asked for once. The permission holds for all threads and for forked children. Linux refuses it where a thread has
    an alternate signal stack too small for the tiles.
    """
    if absent := missing("amx_tile"):
        return absent
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_SYS_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0:
        return ""
    code = ctypes.get_errno()
    return f"the kernel does not permit AMX tiles (arch_prctl: {os.strerror(code)}); it needs Linux 5.16 or later"


def require_amx() -> None:
    """Raise UnsupportedError where this process may not use AMX tiles."""
    if refusal := amx_refusal():
        raise UnsupportedError(refusal, hint="another implementation runs: see registry.explain")
