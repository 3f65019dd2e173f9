"""The clock that a device runs at while something is timed: steady before, read after."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from time import perf_counter

import torch

from ...device import Device
from .device_samplers import DeviceClock
from .family import is_of_the_run
from .nvml import Gpu, gpu_of

_ALWAYS = frozenset({"power cap", "sync boost"})
"""Reasons for throttling that are no disturbance: a large matrix product runs at the power limit all the time."""
_WARM_UP_S = 0.3
_CHUNK_US = 8_000.0
_MOST_PRODUCTS = 500
_ALIKE = 4
_SPREAD = 0.01
_LOOK_EVERY_S = 1.0
_SIDE = 2048
_SLOW_S = 0.0005
_REUSE = 20


@dataclass(frozen=True)
class ClockReading:
    """Clocks in MHz (None where the driver does not tell them) and the reasons for throttling.

    The power limit is no such reason: ``capped`` tells of it.
    """

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    throttled: tuple[str, ...] = ()
    capped: bool = False

    @property
    def details(self) -> dict[str, object]:
        found: dict[str, object] = {"sm_mhz": self.sm_mhz, "memory_mhz": self.memory_mhz}
        found |= {"throttled": list(self.throttled)} if self.throttled else {}
        return found | ({"power_capped": True} if self.capped else {})


class Clocks:
    """The clocks of a device. Of a CPU, or a GPU without NVML, nothing is known."""

    def __init__(self, device: Device, gpu: Gpu | None = None) -> None:
        self._device = device
        self._gpu = gpu
        self._warmed = device.type != "cuda"
        self._looked = -_LOOK_EVERY_S
        self._latest: ClockReading | None = None
        self._reuse_until = 0.0
        self._contended = False

    @classmethod
    def of(cls, device: Device) -> Clocks:
        """The clocks of a device as NVML tells them, where it does."""
        return cls(device, gpu_of(device))

    def warm(self) -> None:
        """At the first call, keep the device busy until its clock is steady, 0.3 s at most."""
        if not self._warmed:
            self._warmed = True
            warm_until_steady(_products(self._device), self._sm_mhz)

    def read(self) -> ClockReading | None:
        """The clocks now; None where the driver does not tell them.

        Where reading takes ms the latest reading serves for a while, unless the device was throttled.
        """
        if self._gpu is None:
            return None
        began = perf_counter()
        if self._latest is None or began >= self._reuse_until:
            self._latest = _reading(self._gpu)
            ended = perf_counter()
            lasts = ended - began > _SLOW_S and not self._latest.throttled
            self._reuse_until = ended + _REUSE * (ended - began) if lasts else 0.0
        return self._latest

    def contended(self) -> bool:
        """Whether another process computes on the GPU; looked up at most once a second.

        The run's own has a context there, too; what a program computes while it calls ``registry.tune`` is not seen.
        """
        now = perf_counter()
        if self._gpu is not None and now - self._looked >= _LOOK_EVERY_S:
            self._looked = now
            own = os.getpid()
            self._contended = any(not is_of_the_run(pid, own) for pid in self._gpu.others({own}) or ())
        return self._contended

    def _sm_mhz(self) -> int | None:
        clocks = self._gpu.clocks() if self._gpu else None
        return clocks.sm if clocks else None


def _reading(gpu: Gpu) -> ClockReading:
    clocks, reasons = gpu.clocks(), set(gpu.throttled())
    return ClockReading(
        clocks.sm if clocks else None,
        clocks.memory if clocks else None,
        tuple(sorted(reasons - _ALWAYS)),
        "power cap" in reasons,
    )


def warm_until_steady(chunk_us: Callable[[], float], sm_mhz: Callable[[], int | None]) -> bool:
    """Run chunks of work until the latest four agree in time and clock to 1%; False if they do not within 0.3 s."""
    times, clocks = deque[float](maxlen=_ALIKE), deque[float](maxlen=_ALIKE)
    began = perf_counter()
    while perf_counter() - began < _WARM_UP_S:
        times.append(chunk_us())
        if (mhz := sm_mhz()) is not None:
            clocks.append(mhz)
        if _agree(times) and (not clocks or _agree(clocks)):
            return True
    return False


def _agree(values: Collection[float]) -> bool:
    return len(values) == _ALIKE and max(values) - min(values) <= _SPREAD * max(values)


def _products(device: Device) -> Callable[[], float]:
    """Returns a function that runs some ms of matrix products on random data and returns their µs.

    They draw the most power, so that the boost of an idle chip ends.
    """
    generator = torch.Generator(device=device.torch)
    generator.manual_seed(0)
    one = torch.randn((_SIDE, _SIDE), device=device.torch, generator=generator).half()
    product = torch.empty_like(one)
    clock = DeviceClock(100.0)

    def multiply(times: int) -> float:
        return clock.time([lambda: [torch.mm(one, one, out=product) for _ in range(times)]])[0].us

    multiply(1)
    count = min(_MOST_PRODUCTS, math.ceil(_CHUNK_US / multiply(1)))
    return lambda: multiply(count)
