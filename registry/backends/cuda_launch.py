"""Loaded kernels and their launches: from tensors to ``cuLaunchKernelEx`` with nothing allocated on the way."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from ..artifact import Signature
from ..errors import DeviceError, InvalidDefinitionError, OutOfResourcesError
from ..implementation import Launch, RowsRun, Run, Tensors
from ..problem import FULL_ALIGNMENT, TensorSpec
from ..symbolic import is_symbolic, text_of
from . import nvrtc
from .cuda_stream import current_device, current_stream

# struct CUlaunchConfig: grid and block extents, shared bytes, (padding,) stream, attributes, their count
_CONFIGURATION = struct.Struct("<7I4xQQI4x")
_STREAM_OFFSET = 32
_STREAM = struct.Struct("<Q")
_GRID = struct.Struct("<3I")
# struct CUlaunchAttribute: id, padding, a union of 64 bytes that begins with the cluster's extents
_CLUSTER = struct.Struct("<I4x3I52x")
_CLUSTER_DIMENSION = 4
_INVALID_CONTEXT = 201
_OUT_OF_RESOURCES = 701
_PORTABLE_CLUSTER = 8
_NUMBERS = {bool: ("?7x", 1), int: ("q", 8), float: ("f4x", 4)}


@dataclass(frozen=True)
class Kernel:
    """A kernel loaded into this process; ``handle`` is a CUkernel, good in every context. It is never unloaded:
    a captured CUDA graph may hold it longer than any plan."""

    handle: int
    owner: Any


_LOCK = threading.Lock()
_LOADED: dict[tuple[str, int], Kernel] = {}
"""Only ever grows: a run holds no more than a handle, and cuda.core unloads a kernel that nobody refers to."""

_DYNAMIC_SHARED: dict[tuple[int, int], int] = {}
"""Dynamic shared bytes that a kernel (by handle and device) may be launched with."""


def load(path: str, device: int) -> Kernel | None:
    """The cached kernel at ``path``, loaded now and not at its first launch (which a capture would forbid).

    None when the file is gone or broken.
    """
    with _LOCK:
        kernel = _LOADED.get((path, device)) or _load(path, device)
        if kernel is not None:
            _LOADED[path, device] = kernel
        return kernel


def _load(path: str, device: int) -> Kernel | None:
    found = nvrtc.read(Path(path))
    if found is None:
        return None
    from cuda.core import Device, ObjectCode

    Device(device).set_current()
    owner = ObjectCode.from_cubin(found.code).get_kernel(found.symbol)
    driver = _bindings()
    _cold(driver.cuKernelGetFunction(owner.handle))
    return Kernel(int(owner.handle), owner)


def allow(kernel: Kernel, launch: Launch, device: int) -> None:
    """Raise the kernel's limits to what the launch asks: dynamic shared memory, clusters above 8.

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
    if _product(launch.cluster) > _PORTABLE_CLUSTER:
        _set(kernel, attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, device)


def _set(kernel: Kernel, attribute: Any, value: int, device: int) -> None:
    driver = _bindings()
    _cold(driver.cuKernelSetAttribute(attribute, value, kernel.owner.handle, driver.CUdevice(device)))


def check_arguments(kernel: Kernel, name: str, launch: Launch, signature: Signature) -> None:
    """Raise InvalidDefinitionError when number or sizes of ``launch.args`` are not the kernel's parameters'."""
    wanted = [info.size for info in kernel.owner.arguments_info]
    given = [_kind(name, argument, signature)[1] for argument in launch.args]
    if wanted != given:
        raise InvalidDefinitionError(
            f"kernel {name} has parameters of {wanted} bytes, launch() gives args of {given} bytes: {launch.args}",
            hint="a tensor is a pointer, an int a long long (8 bytes), a float a float (4), a bool a bool (1)",
        )


class Frame:
    """One thread's memory for a sequence of launches: argument values, the array of their addresses, configurations.

    ``values`` holds the tensors' addresses, then the numbers that come with a call, then those that follow from its row
    count, then the literals. A grid that follows from the row count is filled in by the run.
    """

    def __init__(self, layout: Layout, kernels: Sequence[int]) -> None:
        self.values = ctypes.create_string_buffer(max(layout.size, 8))
        for offset, (code, value) in layout.literals.items():
            struct.pack_into(f"<{code}", self.values, offset, value)
        self._parts: list[Any] = []
        self.calls = [
            self._call(kernel, launch, offsets)
            for kernel, launch, offsets in zip(kernels, layout.launches, layout.offsets, strict=True)
        ]

    def _call(self, kernel: int, launch: Launch, offsets: Sequence[int]) -> tuple[Any, int, int, int]:
        base = ctypes.addressof(self.values)
        parameters = (ctypes.c_void_p * max(len(offsets), 1))(*(base + offset for offset in offsets))
        attribute = ctypes.create_string_buffer(_CLUSTER.size)
        if launch.cluster:
            _CLUSTER.pack_into(attribute, 0, _CLUSTER_DIMENSION, *_three(launch.cluster))
        grid = (0 if is_symbolic(extent) else extent for extent in _three(launch.grid))
        extents = (*grid, *block_of(launch))
        attributes = (ctypes.addressof(attribute), 1) if launch.cluster else (0, 0)
        configuration = ctypes.create_string_buffer(_CONFIGURATION.size)
        _CONFIGURATION.pack_into(configuration, 0, *extents, launch.shared_bytes, 0, *attributes)
        self._parts += [parameters, attribute]
        return configuration, ctypes.addressof(configuration), kernel, ctypes.addressof(parameters)


class Layout:
    """Where every argument of a sequence of launches comes from (group, place) and lies in a Frame (offset)."""

    def __init__(self, names: Sequence[str], launches: Sequence[Launch], signature: Signature) -> None:
        self.launches = tuple(launches)
        self.tensors: list[tuple[int, int]] = []
        self.numbers: list[tuple[int, int]] = []
        self.literals: dict[int, tuple[str, Any]] = {}
        self.computed: list[Any] = []
        places = _places(signature)
        slots: dict[Any, int] = {}
        codes: list[str] = []
        kinds = [
            [(argument, *_kind(name, argument, signature)) for argument in launch.args]
            for name, launch in zip(names, launches, strict=True)
        ]
        found = {argument: code for args in kinds for argument, code, _ in args if isinstance(argument, str)}
        for wanted, group in ((True, self.tensors), (False, self.numbers)):
            for argument, code in found.items():
                if (code == "Q") == wanted and signature[argument] is not None:
                    slots[argument] = 8 * len(codes)
                    codes.append(code)
                    group.append(places[argument])
        for number, code in ((number, code) for args in kinds for number, code, _ in args if is_symbolic(number)):
            slots[id(number)] = 8 * len(codes)
            codes.append(code)
            self.computed.append(number)
        self.pack = struct.Struct("<" + "".join(codes)).pack_into
        self.size = 8 * len(codes)
        self.offsets = [[self._offset(slots, argument, code) for argument, code, _ in args] for args in kinds]

    def _offset(self, slots: dict[Any, int], argument: Any, code: str) -> int:
        if isinstance(argument, str) and argument in slots:
            return slots[argument]
        if is_symbolic(argument):
            return slots[id(argument)]
        self.literals[self.size] = (code, 0 if isinstance(argument, str) else argument)
        self.size += 8
        return self.size - 8


def bind_launches(
    kernels: Sequence[Kernel],
    names: Sequence[str],
    launches: Sequence[Launch],
    signature: Signature,
    device: int,
    misaligned: Run | None,
) -> Run:
    """What the hot path calls: the launches in order, on the current stream of ``device``. Any thread may call it.

    ``misaligned`` gets the call instead when a tensor's address is no multiple of 16 bytes.
    """
    run: Run = _bound(kernels, names, launches, signature, device, misaligned)
    return run


def bind_rows(
    kernels: Sequence[Kernel],
    names: Sequence[str],
    launches: Sequence[Launch],
    signature: Signature,
    device: int,
    misaligned: RowsRun | None,
) -> RowsRun:
    """The same for launches whose grids and numbers follow from the row count, the run's last argument."""
    run: RowsRun = _bound(kernels, names, launches, signature, device, misaligned)
    return run


def _bound(
    kernels: Sequence[Kernel],
    names: Sequence[str],
    launches: Sequence[Launch],
    signature: Signature,
    device: int,
    misaligned: Callable[..., Any] | None,
) -> Any:
    launches_, kernels_, names_ = _without_empty(launches, kernels, names)
    layout = Layout(names_, launches_, signature)
    compute, grids = _computed(layout), _grids(launches_)
    handles = [kernel.handle for kernel in kernels_]
    frames = _Frames(layout, handles)
    tensors, numbers, pack = tuple(layout.tensors), tuple(layout.numbers), layout.pack
    mask = FULL_ALIGNMENT - 1 if misaligned is not None else 0
    enqueue, pack_stream, pack_grid = _enqueue(), _STREAM.pack_into, _GRID.pack_into

    def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors, *rows: int) -> None:
        if current_device() != device:
            with torch.cuda.device(device):
                return run(outputs, arguments, scratch, *rows)
        groups = (outputs, arguments, scratch)
        values, bits = [], 0
        for group, place in tensors:
            address = groups[group][place].data_ptr()
            bits |= address
            values.append(address)
        if bits & mask:
            assert misaligned is not None
            misaligned(outputs, arguments, scratch, *rows)
            return None
        frame = frames.frame
        for group, place in numbers:
            values.append(groups[group][place])
        if rows:
            values += compute(*rows)
            for place, grid in grids:
                pack_grid(frame.calls[place][0], 0, *grid(*rows))
        pack(frame.values, 0, *values)
        stream = current_stream(device)
        for configuration, where, kernel, parameters in frame.calls:
            pack_stream(configuration, _STREAM_OFFSET, stream)
            if status := enqueue(where, kernel, parameters, None):
                _recover(status, (where, kernel, parameters, None), device, names_)
        return None

    return run


def _computed(layout: Layout) -> Callable[[int], tuple[Any, ...]]:
    """The numbers that follow from the row count, in the order of the frame."""
    return _of_rows(layout.computed)


def _grids(launches: Sequence[Launch]) -> list[tuple[int, Callable[[int], tuple[Any, ...]]]]:
    """The grids that follow from the row count, by the place of their launch."""
    return [
        (place, _of_rows(_three(launch.grid)))
        for place, launch in enumerate(launches)
        if any(is_symbolic(extent) for extent in launch.grid)
    ]


def _of_rows(numbers: Sequence[Any]) -> Callable[[int], tuple[Any, ...]]:
    texts = "".join(f"{text_of(number)}, " for number in numbers)
    function: Callable[[int], tuple[Any, ...]] = eval(f"lambda rows: ({texts})")
    return function


class _Frames(threading.local):
    """A Frame for each thread: the call to the driver releases the GIL while it reads the frame."""

    def __init__(self, layout: Layout, kernels: Sequence[int]) -> None:
        self.frame = Frame(layout, kernels)


def block_of(launch: Launch) -> tuple[int, int, int]:
    """The launch's threads per block: the option ``block``, an int or up to three extents."""
    block = launch.options.get("block")
    if isinstance(block, int):
        return block, 1, 1
    if isinstance(block, list | tuple) and 1 <= len(block) <= 3:
        return _three(block)
    raise InvalidDefinitionError(
        f"launch of {launch.kernel}: option block={block!r}", hint="expected threads per block"
    )


def _kind(name: str, argument: Any, signature: Signature) -> tuple[str, int]:
    """Format code (8 bytes each) and true size of an argument."""
    value = argument
    if isinstance(argument, str):
        try:
            value = signature[argument]
        except KeyError:
            raise InvalidDefinitionError(
                f"kernel {name}: launch() names {argument!r}, which is no input, output, scratch or prepared tensor"
            ) from None
        if value is None or isinstance(value, TensorSpec):
            return "Q", 8
    if is_symbolic(value):
        return _NUMBERS[int if isinstance(value, int) else float]
    if type(value) not in _NUMBERS:
        raise InvalidDefinitionError(
            f"kernel {name}: argument {argument!r} is a {type(value).__name__}", hint="expected a tensor or a number"
        )
    return _NUMBERS[type(value)]


def _places(signature: Signature) -> dict[str, tuple[int, int]]:
    arguments = [*signature.arguments.values, *signature.prepared]
    groups: tuple[Iterable[str], ...] = (signature.outputs, arguments, signature.scratch)
    places: dict[str, tuple[int, int]] = {}
    for group, names in enumerate(groups):
        for place, name in enumerate(names):
            places.setdefault(name, (group, place))
    return places


def _without_empty(
    launches: Sequence[Launch], kernels: Sequence[Kernel], names: Sequence[str]
) -> tuple[tuple[Launch, ...], tuple[Kernel, ...], tuple[str, ...]]:
    kept = [place for place, launch in enumerate(launches) if 0 not in launch.grid]
    return tuple(launches[k] for k in kept), tuple(kernels[k] for k in kept), tuple(names[k] for k in kept)


def _recover(status: int, call: tuple[int | None, ...], device: int, names: Sequence[str]) -> None:
    if status == _INVALID_CONTEXT:
        # a thread that has not used CUDA yet has no context
        from cuda.core import Device

        Device(device).set_current()
        status = _enqueue()(*call)
    if status:
        kind = OutOfResourcesError if status == _OUT_OF_RESOURCES else DeviceError
        raise kind(f"launch of {', '.join(names)} on cuda:{device} failed: {_error_name(status)}")


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
    """``cuLaunchKernelEx(configuration, kernel, parameters, extra)`` by ctypes: it copies the arguments and returns."""
    function = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    function.argtypes = [ctypes.c_void_p] * 4
    function.restype = ctypes.c_int
    return function


def _three(extents: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*extents, 1, 1, 1)[:3]
    return x, y, z


def _product(extents: Sequence[int]) -> int:
    x, y, z = _three(extents)
    return x * y * z
