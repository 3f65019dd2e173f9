"""Estimates for constraints of spaces: the registers and shared memory of a configuration; and a kernel's occupancy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from ..device import Device

WARP = 32
"""Lanes assumed where the device has no warps: the CPU that Triton's interpreter runs on."""

_REGISTERS = 65536
_REGISTERS_OF_A_WARP = 256


class _Multiprocessor(NamedTuple):
    """Limits of an SM: threads, blocks, KiB of shared memory, and KiB of it that the driver reserves per block."""

    threads: int
    blocks: int
    shared_kib: int
    reserved_kib: int = 1


_MULTIPROCESSORS = {
    "sm_70": _Multiprocessor(2048, 32, 96, 0),
    "sm_75": _Multiprocessor(1024, 16, 64, 0),
    "sm_80": _Multiprocessor(2048, 32, 164),
    "sm_86": _Multiprocessor(1536, 16, 100),
    "sm_87": _Multiprocessor(1536, 16, 164),
    "sm_89": _Multiprocessor(1536, 24, 100),
    "sm_90": _Multiprocessor(2048, 32, 228),
    "sm_100": _Multiprocessor(2048, 32, 228),
    "sm_103": _Multiprocessor(2048, 32, 228),
    "sm_110": _Multiprocessor(1536, 24, 228),
    "sm_120": _Multiprocessor(1536, 24, 100),
    "sm_121": _Multiprocessor(1536, 24, 100),
}
"""CUDA programming guide, table of technical specifications per compute capability."""

_AMD_SHARED_KIB = {"gfx90a": 64, "gfx942": 64, "gfx950": 160}


def shared_limit(architecture: str) -> int | None:
    """Bytes of shared memory that one program may use on ``"sm_90"``; None for an architecture not listed here."""
    found = _MULTIPROCESSORS.get(architecture)
    kibibytes = found.shared_kib - found.reserved_kib if found else _AMD_SHARED_KIB.get(architecture)
    return None if kibibytes is None else kibibytes * 1024


def next_power_of_2(number: int) -> int:
    """The least power of two that is at least ``number`` (and at least 1)."""
    return 1 << (number - 1).bit_length() if number > 1 else 1


def threads(num_warps: int, device: Device) -> int:
    """Threads of a program of ``num_warps`` warps."""
    return num_warps * (device.warp_size if device.warp_size > 1 else WARP)


def elements_per_thread(elements: int, num_warps: int, device: Device) -> float:
    """The number of a block's ``elements`` per thread; below 1 if some threads hold none."""
    return elements / threads(num_warps, device)


def fits_registers(live: int, num_warps: int, device: Device, share: float = 1.0) -> bool:
    """True if ``live`` 32-bit values of a program fit in ``share`` of its threads' registers.

    A thread has at most 255 registers, and the threads of a program together at most the SM's.
    """
    count = threads(num_warps, device)
    each = min(255, (device.registers or _REGISTERS) // count)
    return live / count <= share * each


def fits_shared(needed: int, device: Device) -> bool:
    """True if one program may use ``needed`` bytes of shared memory; always on a CPU."""
    limit = device.shared_bytes or shared_limit(device.architecture)
    return limit is None or needed <= limit


def programs_per_multiprocessor(programs: int, device: Device) -> float:
    """The mean number of a grid's ``programs`` per SM."""
    return programs / max(device.multiprocessors, 1)


def row_multiple(size: int) -> int:
    """The greatest power of two up to 16 that divides ``size``, and so the offset of each row of that size."""
    return math.gcd(size, 16)


def occupancy(resources: Mapping[str, int], architecture: str) -> float | None:
    """Resident warps as a fraction of the SM's maximum; None for unknown architectures or resources.

    ``resources`` are an artifact's: registers a thread, shared bytes and threads a block.
    """
    limits, threads = _MULTIPROCESSORS.get(architecture), resources.get("threads", 0)
    if limits is None or threads < 1 or "registers" not in resources:
        return None
    warps = -(-threads // WARP)
    registers = -(-resources["registers"] * WARP // _REGISTERS_OF_A_WARP) * _REGISTERS_OF_A_WARP
    shared = resources.get("shared_bytes", 0) + 1024 * limits.reserved_kib
    blocks = min(
        limits.blocks,
        limits.threads // (warps * WARP),
        _REGISTERS // max(registers, 1) // warps,
        limits.shared_kib * 1024 // shared if shared else limits.blocks,
    )
    return blocks * warps / (limits.threads // WARP)
