"""The NVIDIA driver's readings of a GPU while it is measured; None or empty where the driver does not give one.

Needs the distribution ``nvidia-ml-py`` (extra ``cuda``). Nothing here touches CUDA: no context is made.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from ...device import Device

_T = TypeVar("_T")

# bit -> name, as nvml.h numbers clocksEventReasons; the rest (idle, application clocks) is not throttling
_REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
_LOOK_S = 0.02


@dataclass(frozen=True)
class ClockRates:
    """Current clocks in MHz."""

    sm: int
    memory: int


class Gpu:
    """One device's readings, all cheap (tens of µs). Never raises."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle

    def clocks(self) -> ClockRates | None:
        sm, memory = self._clock("NVML_CLOCK_SM"), self._clock("NVML_CLOCK_MEM")
        return None if sm is None or memory is None else ClockRates(sm, memory)

    def throttle_mask(self) -> int | None:
        """The driver's bit mask of reasons why clocks are not at their highest."""
        # the first name has replaced the second
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            if hasattr(self._library, name):
                mask = self._ask(getattr(self._library, name), self._handle)
                if mask is not None:
                    return int(mask)
        return None

    def throttled(self) -> tuple[str, ...]:
        """Names of the reasons why the device is throttled now; idle and application clocks are no such reasons."""
        return reasons(self.throttle_mask() or 0)

    def compute_processes(self) -> frozenset[int] | None:
        """Process ids with a context on the device by the driver's numbers, from which a container's may differ."""
        found = self._ask(self._library.nvmlDeviceGetComputeRunningProcesses, self._handle)
        return None if found is None else frozenset(int(process.pid) for process in found)

    def others(self, own: Collection[int]) -> frozenset[int] | None:
        """Process ids on the device beside ``own``; None where the driver does not tell, as in some containers."""
        found = self.compute_processes()
        if found is None or (found and own and not found & set(own)):
            return None
        return found - set(own)

    def utilisation(self) -> int | None:
        """Percent of the last sampling period in which a kernel ran."""
        rates = self._ask(self._library.nvmlDeviceGetUtilizationRates, self._handle)
        return None if rates is None else int(rates.gpu)

    def node_number(self) -> int | None:
        """The number of the GPU's device node: 2 of /dev/nvidia2."""
        found = self._ask(self._library.nvmlDeviceGetMinorNumber, self._handle)
        return None if found is None else int(found)

    def wait_until_gone(self, pid: int, seconds: float) -> bool:
        """Whether ``pid`` is no longer listed, waiting at most ``seconds``; True where the driver does not tell."""
        until = time.monotonic() + seconds
        while pid in (self.compute_processes() or ()):
            if time.monotonic() > until:
                return False
            time.sleep(_LOOK_S)
        return True

    def _clock(self, kind: str) -> int | None:
        value = self._ask(self._library.nvmlDeviceGetClockInfo, self._handle, getattr(self._library, kind))
        return None if value is None else int(value)

    def _ask(self, function: Callable[..., _T], *arguments: Any) -> _T | None:
        # a MIG slice, a virtual GPU or an old driver refuses some readings
        try:
            return function(*arguments)
        except self._library.NVMLError:
            return None


def reasons(mask: int) -> tuple[str, ...]:
    """The names of the throttling bits in a mask of :meth:`Gpu.throttle_mask`."""
    return tuple(name for bit, name in _REASONS.items() if mask & bit)


def gpu_of(device: Device) -> Gpu | None:
    """NVML's view of a device; None on a CPU, on AMD, without the package or its driver library."""
    if device.type != "cuda" or torch.version.hip:
        return None
    library = _library(os.getpid())
    if library is None:
        return None
    properties: Any = torch.cuda.get_device_properties(device.index)
    uuid = getattr(properties, "uuid", None)
    found = _handle(library, f"GPU-{uuid}", f"MIG-{uuid}") if uuid else None
    if found is None and hasattr(properties, "pci_bus_id"):
        address = f"{properties.pci_domain_id:08X}:{properties.pci_bus_id:02X}:{properties.pci_device_id:02X}.0"
        with contextlib.suppress(library.NVMLError):
            found = library.nvmlDeviceGetHandleByPciBusId(address)
    return None if found is None else Gpu(library, found)


def identity_of(device: Device) -> str:
    """A name of the device that is unique on the machine and equal in every process: its UUID; "cpu" for a CPU.

    Of a MIG instance the UUID is its own. Where the driver gives that of the whole GPU instead, the name by which
    ``CUDA_VISIBLE_DEVICES`` chose the instance is added.
    """
    if device.type != "cuda":
        return device.label
    properties: Any = torch.cuda.get_device_properties(device.index)
    uuid = getattr(properties, "uuid", None)
    if uuid is None:
        return f"{properties.name} {getattr(properties, 'pci_bus_id', device.index)}"
    library = _library(os.getpid()) if device.mig else None
    if library is None or _handle(library, f"MIG-{uuid}") is not None:
        return str(uuid)
    return f"{uuid} {_chosen_as(device.index)}".strip()


def _chosen_as(index: int) -> str:
    """The MIG instance that ``CUDA_VISIBLE_DEVICES`` names at this place; "" for a number or the name of a GPU."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    name = names[index].strip() if index < len(names) else ""
    return name if name.startswith("MIG-") else ""


@functools.lru_cache(maxsize=2)
def _library(_process: int) -> Any | None:
    """NVML, initialised once in each process (a fork is another)."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _handle(library: Any, *names: str) -> Any | None:
    for name in names:
        with contextlib.suppress(library.NVMLError):
            return library.nvmlDeviceGetHandleByUUID(name)
    return None
