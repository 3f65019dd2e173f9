"""Loaded CUDA kernels and their launches by ``cuLaunchKernelEx``, without allocating memory at a call."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch

from ...artifact import Signature
from ...errors import DeviceError, InvalidDefinitionError, OutOfResourcesError
from ...implementation import Launch
from ...problem import FULL_ALIGNMENT
from ..cuda_stream import current_device, current_stream, only_gpu
from ..kernel_limit import check_room
from ..launch_numbers import numbers_of
from ..written_run import Operands, WrittenForm, WrittenRun
from . import nvrtc
from .frame import Frames, Layout, kind_of

_INVALID_CONTEXT = 201
_OUT_OF_RESOURCES = 701
_PORTABLE_CLUSTER = 8


@dataclass(frozen=True)
class Kernel:
    """A kernel loaded into this process; ``handle`` is a CUkernel, valid in every context. It is never unloaded:
    a captured CUDA graph may hold it longer than any plan."""

    handle: int
    owner: Any

    @cached_property
    def sizes(self) -> list[int]:
        return [info.size for info in self.owner.arguments_info]


_LOCK = threading.Lock()
_LOADED: dict[tuple[str, int], Kernel] = {}
"""Kernels by path and device, never removed: cuda.core unloads a kernel without references, but runs and captured
graphs hold only its handle. ``kernel_limit`` bounds their number."""

_DYNAMIC_SHARED: dict[tuple[int, int], int] = {}
"""Dynamic shared bytes that a kernel (by handle and device) may be launched with."""


def load(path: str, device: int) -> Kernel | None:
    """The cached kernel at ``path``, loaded immediately (a capture would forbid loading it at its first launch).

    None if the file is missing or damaged. Raises OutOfResourcesError if too many kernels are loaded already.
    """
    with _LOCK:
        kernel = _LOADED.get((path, device))
        if kernel is None:
            check_room(len(_LOADED), "CUDA")
        kernel = kernel or _load(path, device)
        if kernel is not None:
            _LOADED[path, device] = kernel
        return kernel


def _load(path: str, device: int) -> Kernel | None:
    found = nvrtc.read(Path(path))
    if found is None:
        return None
    from cuda.core import Device, ObjectCode

    # another GPU may be current, and must be current again afterwards
    with torch.cuda.device(device):
        Device(device).set_current()
        owner = ObjectCode.from_cubin(found.code).get_kernel(found.symbol)
        _cold(_bindings().cuKernelGetFunction(owner.handle))
    return Kernel(int(owner.handle), owner)


def allow(kernel: Kernel, launch: Launch, device: int) -> None:
    """Raise the kernel's limits to those of the launch: dynamic shared memory, clusters above 8.

    Plans share a kernel, so a limit is never lowered. It is set below 48 KiB too: static and dynamic shared memory
    count together.
    """
    attributes = _bindings().CUfunction_attribute
    if launch.shared_bytes:
        with _LOCK:
            if launch.shared_bytes > _DYNAMIC_SHARED.get((kernel.handle, device), 0):
                wanted = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                _set(kernel, wanted, launch.shared_bytes, device)
                _DYNAMIC_SHARED[kernel.handle, device] = launch.shared_bytes
    if math.prod(launch.cluster) > _PORTABLE_CLUSTER:
        _set(kernel, attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, device)


def _set(kernel: Kernel, attribute: Any, value: int, device: int) -> None:
    driver = _bindings()
    _cold(driver.cuKernelSetAttribute(attribute, value, kernel.owner.handle, driver.CUdevice(device)))


def check_arguments(kernel: Kernel, launch: Launch, signature: Signature) -> None:
    """Raise InvalidDefinitionError when number or sizes of ``launch.args`` are not the kernel's parameters'."""
    given = [kind_of(launch, argument, signature)[1] for argument in launch.args]
    if kernel.sizes != given:
        raise InvalidDefinitionError(
            f"kernel {launch.kernel} has parameters of {kernel.sizes} bytes, launch() gives {given}: {launch.args}",
            hint="a tensor is a pointer, an int a long long (8 bytes), a float a float (4), a bool a bool (1)",
        )


class LaunchForm(WrittenForm):
    """Launches of loaded kernels without their extents and numbers, on the current stream of ``device``.

    ``guarded``: a call with a tensor that does not start at a multiple of 16 bytes goes to the twin.
    """

    def __init__(
        self, kernels: Sequence[Kernel], launches: Sequence[Launch], signature: Signature, device: int, guarded: bool
    ) -> None:
        self._device = device
        self.guarded = guarded
        self._kept = tuple(place for place, launch in enumerate(launches) if 0 not in launch.grid)
        self._titles = ", ".join(str(launches[place].kernel) for place in self._kept)
        # misaligned tensors are read element by element, by loads that the compiler may move before the wait
        self._layout = Layout([launches[place] for place in self._kept], signature, dependent=guarded)
        extents, fixed = self._layout.extents(self._kept)
        self.sized = ["k_frames", *extents]
        made = {"frames": lambda launches: Frames(self._layout, [launches[place] for place in self._kept])}
        self.numbers = numbers_of(launches, ["frames(launches)", *extents.values()], made)
        self.names: dict[str, Any] = {
            "k_current_device": current_device,
            "k_current_stream": current_stream,
            "k_pack": self._layout.pack,
            "k_enqueue": _enqueue() if self._kept else None,
            "k_recover": self._recover,
            "k_kernels": tuple(kernels),
            **fixed,
        }
        for number, place in enumerate(self._kept):
            # ctypes passes a reference of its own on as it is; an int it would convert at each call
            self.names[f"k_kernel_{number}"] = ctypes.c_void_p.from_param(kernels[place].handle)

    def careful(self, run: WrittenRun, *groups: Any) -> None:
        """Make the GPU of the run current and run again: it was not the current one."""
        with torch.cuda.device(self._device):
            run(*groups)

    def _recover(self, status: int, *call: Any) -> None:
        """Launch again if the thread had no CUDA context. Raises DeviceError or OutOfResourcesError.

        ``call`` are the arguments of the driver's call, ``status`` is its result.
        """
        if status == _INVALID_CONTEXT:
            # a thread that has not used CUDA yet has no context
            from cuda.core import Device

            Device(self._device).set_current()
            status = _enqueue()(*call)
        if status:
            kind = OutOfResourcesError if status == _OUT_OF_RESOURCES else DeviceError
            raise kind(f"launch of {self._titles} on cuda:{self._device} failed: {_error_name(status)}")

    def lines(self, operands: Operands) -> list[str]:
        """The launches in order."""
        return _lines(self._layout, operands, self._device, guarded=self.guarded) if self._kept else []


def _lines(layout: Layout, operands: Operands, device: int, *, guarded: bool) -> list[str]:
    """The text of a run: one ``pack`` of everything that changes, then one call to the driver per launch."""
    addresses = [f"k_address_{number}" for number in range(len(layout.tensors))]
    taken = zip(addresses, layout.tensors, strict=True)
    body: list[str] = []
    if not operands.on_device and not only_gpu():
        body = [f"if k_current_device() != {device}:", *(f"    {line}" for line in operands.leave_to("k_run.careful"))]
    body += [f"{name} = {operands.address(group, place)}" for name, (group, place) in taken]
    if guarded and addresses:
        body.append(f"if ({' | '.join(addresses)}) & {FULL_ALIGNMENT - 1}:")
        body += [f"    {line}" for line in operands.leave_to("k_run.twin")]
    calls = [(f"k_configuration_{place}", f"k_parameters_{place}") for place in range(layout.count)]
    body += [
        f"k_stream = {operands.stream or f'k_current_stream({device})'}",
        f"k_memory, {', '.join(name for call in calls for name in call)} = k_frames.frame",
        f"k_pack(k_memory, {layout.start}, {', '.join(layout.packed(addresses, operands))})",
    ]
    for place, (configuration, parameters) in enumerate(calls):
        call = f"{configuration}, k_kernel_{place}, {parameters}, None"
        body.append(f"if k_status := k_enqueue({call}): k_recover(k_status, {call})")
    return body


def _error_name(status: int) -> str:
    driver = _bindings()
    try:
        return str(driver.CUresult(status).name)
    except ValueError:
        return f"CUDA error {status}"


def _cold(result: tuple[Any, ...]) -> None:
    if int(result[0]):
        raise DeviceError(f"CUDA refused a kernel: {result[0].name}")


def _bindings() -> Any:
    from cuda.bindings import driver

    return driver


@lru_cache(maxsize=1)
def _enqueue() -> Any:
    """``cuLaunchKernelEx(configuration, kernel, parameters, extra)`` by ctypes: it copies the arguments and returns.

    It has no ``argtypes``: every argument must be None or a reference made by ctypes.
    """
    return ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
