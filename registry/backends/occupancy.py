"""Occupancy of an SM by a compiled kernel, from what its compiler says that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_WARP = 32
_REGISTERS = 65536
_REGISTERS_OF_A_WARP = 256
_RESERVED_BYTES = 1024


@dataclass(frozen=True)
class _Limits:
    """Of one SM: resident threads, resident blocks, KiB of shared memory."""

    threads: int
    blocks: int
    shared_kib: int


# CUDA programming guide, table of technical specifications per compute capability
_LIMITS = {
    "sm_75": _Limits(1024, 16, 64),
    "sm_80": _Limits(2048, 32, 164),
    "sm_86": _Limits(1536, 16, 100),
    "sm_87": _Limits(1536, 16, 164),
    "sm_89": _Limits(1536, 24, 100),
    "sm_90": _Limits(2048, 32, 228),
    "sm_100": _Limits(2048, 32, 228),
    "sm_103": _Limits(2048, 32, 228),
    "sm_120": _Limits(1536, 24, 100),
    "sm_121": _Limits(1536, 24, 100),
}


def occupancy(resources: Mapping[str, int], architecture: str) -> float | None:
    """Resident warps as a fraction of an SM's most; None for an architecture or resources that are not known.

    ``resources`` are an artifact's: registers a thread, shared bytes and threads a block.
    """
    limits, threads = _LIMITS.get(architecture), resources.get("threads", 0)
    if limits is None or threads < 1 or "registers" not in resources:
        return None
    warps = -(-threads // _WARP)
    registers = -(-resources["registers"] * _WARP // _REGISTERS_OF_A_WARP) * _REGISTERS_OF_A_WARP
    # from sm_80 on the driver keeps a KiB of each block for itself
    reserved = _RESERVED_BYTES if limits.shared_kib >= 100 else 0
    shared = resources.get("shared_bytes", 0) + reserved
    blocks = min(
        limits.blocks,
        limits.threads // (warps * _WARP),
        _REGISTERS // max(registers, 1) // warps,
        limits.shared_kib * 1024 // shared if shared else limits.blocks,
    )
    return blocks * warps / (limits.threads // _WARP)
