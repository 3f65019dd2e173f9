"""The least time that a device can take for a problem: its bytes over the peak bandwidth, its FLOP over the peak."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...contract import Floor
from ...device import Device

_MARGIN = 1.1
"""A time that beats a peak by this factor is refused; 241 winners on an H200 reached 0.885 (bytes) and 0.39 (FLOP)."""
_FLOP = {"sm_80": 8192, "sm_86": 4096, "sm_89": 4096, "sm_90": 8192, "sm_100": 32_768, "sm_120": 8192}
"""A multiprocessor's FLOP in a cycle, in the shortest type that its tensor cores multiply, dense."""


@dataclass(frozen=True)
class Peaks:
    """The most bytes and FLOP that a device can do in a µs; 0.0 where that is not known, as on a CPU."""

    bytes_per_us: float = 0.0
    flop_per_us: float = 0.0

    @classmethod
    def of(cls, device: Device) -> Peaks:
        """The peaks of a GPU by its driver and its architecture; 0.0 for a CPU, of which nothing is known."""
        if device.type != "cuda" or torch.version.hip:
            return cls()
        found = torch.cuda.get_device_properties(device.index)
        memory_khz, bits = getattr(found, "memory_clock_rate", 0), getattr(found, "memory_bus_width", 0)
        cycles_per_us = getattr(found, "clock_rate", 0) / 1e3
        flop = _FLOP.get(device.architecture, 0) * device.multiprocessors
        # two transfers a cycle
        return cls(2 * memory_khz / 1e3 * bits / 8, flop * cycles_per_us)

    def fault(self, us: float, floor: Floor, regime: str) -> str:
        """Why a problem's work cannot be done in ``us`` µs, "" where it is possible or nothing is known.

        In the regime ``hot`` bytes may come from the cache, so that only its FLOP count.
        """
        if regime == "cold" and self.bytes_per_us and floor.bytes / self.bytes_per_us > _MARGIN * us:
            least, what = floor.bytes / self.bytes_per_us, f"{floor.bytes} bytes at its peak bandwidth"
        elif self.flop_per_us and floor.flop / self.flop_per_us > _MARGIN * us:
            least, what = floor.flop / self.flop_per_us, f"{floor.flop:g} FLOP at its peak"
        else:
            return ""
        return f"it takes {us:.4g} µs, where the device needs {least:.4g} µs for {what}: it leaves work out"
