"""Estimates of the registers and shared memory that a configuration will need, for the constraints of a space."""

from __future__ import annotations

import math

from ..device import Device

WARP = 32
"""Lanes assumed where the device has no warps: the CPU that Triton's interpreter runs on."""

# KiB of one block (CUDA programming guide, table of compute capabilities)
_SHARED_KIB = {
    "sm_70": 96,
    "sm_75": 64,
    "sm_80": 163,
    "sm_86": 99,
    "sm_87": 163,
    "sm_89": 99,
    "sm_90": 227,
    "sm_100": 227,
    "sm_103": 227,
    "sm_110": 227,
    "sm_120": 99,
    "sm_121": 99,
    "gfx90a": 64,
    "gfx942": 64,
    "gfx950": 160,
}


def shared_limit(architecture: str) -> int | None:
    """Bytes of shared memory that one program may use on ``"sm_90"``; None for an architecture not listed here."""
    kibibytes = _SHARED_KIB.get(architecture)
    return None if kibibytes is None else kibibytes * 1024


def next_power_of_2(number: int) -> int:
    """The least power of two that is at least ``number`` (and at least 1)."""
    return 1 << max(number - 1, 0).bit_length()


def threads(num_warps: int, device: Device) -> int:
    """Threads of a program of ``num_warps`` warps."""
    return num_warps * (device.warp_size if device.warp_size > 1 else WARP)


def elements_per_thread(elements: int, num_warps: int, device: Device) -> float:
    """How many of a block's ``elements`` each thread holds, below 1 when some threads hold none."""
    return elements / threads(num_warps, device)


def fits_registers(live: int, num_warps: int, device: Device, share: float = 1.0) -> bool:
    """Whether ``live`` 32-bit values of a program fit in ``share`` of the registers that its threads may have.

    A thread has at most 255, and all the threads of a program at most the SM's.
    """
    count = threads(num_warps, device)
    each = min(255, (device.registers or 65536) // count)
    return live / count <= share * each


def fits_shared(needed: int, device: Device) -> bool:
    """Whether ``needed`` bytes of shared memory are no more than one program may use; a CPU has no limit."""
    limit = device.shared_bytes or shared_limit(device.architecture)
    return limit is None or needed <= limit


def programs_per_multiprocessor(programs: int, device: Device) -> float:
    """How many of a grid's ``programs`` each SM gets."""
    return programs / max(device.multiprocessors, 1)


def row_multiple(size: int, limit: int = 16) -> int:
    """The greatest power of two up to ``limit`` that divides ``size``, and with it the offset of every row."""
    return math.gcd(size, limit)
