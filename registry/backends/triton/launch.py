"""Launching compiled Triton kernels with little host time, through private parts of Triton.

The first way that works of three is used: the C launcher of a compiled kernel with addresses as integers (0.5 to
0.6 µs), the compiled kernel's own call (1.2 to 1.5 µs), the JIT function's (7 to 8 µs). The C launcher is used only in
versions of Triton that were tested, and after one launch in this process has written the right numbers.
"""

from __future__ import annotations

import contextvars
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ...implementation import Launch, Tensors
from ...problem import FULL_ALIGNMENT
from ..cuda_stream import current_device, current_stream, only_gpu
from ..launch_numbers import numbers_of
from ..written_run import Operands, WrittenForm, WrittenRun
from .bound_launch import MOST_PROGRAMS, BoundLaunch, launch_jit, value_of
from .variant import Operand, specialised_parameters


def load(kernel: Any) -> None:
    """Load a compiled kernel on the current device. Raises Triton's OutOfResources when it cannot run there."""
    kernel.run  # noqa: B018 - reading it loads, in every version


class _CarefulRun:
    """A run through the compiled kernels' own call, for launch hooks, another current device or an unknown launcher."""

    def __init__(self, launches: Sequence[BoundLaunch], index: int) -> None:
        self._launches = launches
        self._index = index

    def __call__(self, outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
        groups = {"outputs": outputs, "arguments": arguments, "scratch": scratch}
        needed = any(getattr(launch.compiled.metadata, "global_scratch_size", 0) for launch in self._launches)
        with torch.cuda.device(self._index):
            if needed:
                # Triton keeps its allocator in a context variable, which is empty in every new thread
                contextvars.copy_context().run(self._launch_with_allocator, groups)
            else:
                self._launch(groups)

    def _launch(self, groups: Mapping[str, tuple[Any, ...]]) -> None:
        if not all(hasattr(type(launch.compiled), "__getitem__") for launch in self._launches):
            launch_jit(self._launches, groups)
            return
        for launch in self._launches:
            launch.compiled[launch.grid](*[value_of(operand, groups) for operand in launch.operands])

    def _launch_with_allocator(self, groups: Mapping[str, tuple[Any, ...]]) -> None:
        device = torch.device("cuda", self._index)
        triton.set_allocator(lambda size, _align, _stream: torch.empty(size, dtype=torch.uint8, device=device))
        self._launch(groups)


class DeviceForm(WrittenForm):
    """Launches on a device without their extents and numbers. ``launches`` are the first run's of the form.

    The text is one function without a loop: on the hot path a loop or tuple costs as much as a third of the launch.
    ``direct``: launch through the C launcher.
    """

    def __init__(self, launches: tuple[Launch, ...], bound: Sequence[BoundLaunch], index: int, direct: bool) -> None:
        self.launches = tuple([launch for launch in bound if 0 not in launch.grid])
        self.index = index
        self.direct = direct
        self.names = _runtime_names(index)
        texts: dict[str, str] = {}
        kept = [number for number, launch in enumerate(bound) if 0 not in launch.grid]
        for place, number in enumerate(kept if direct else ()):
            self.names |= _launcher_names(place, bound[number])
            texts |= _size_texts(place, number, bound[number])
        self.sized = texts.keys()
        narrow = [
            {one.argument for one in _numbers(launch) if one.parameter in specialised_parameters(launch.jit)}
            for launch in bound
        ]
        self.numbers = numbers_of(launches, texts.values(), None, narrow, MOST_PROGRAMS)

    @classmethod
    def of(cls, launches: tuple[Launch, ...], bound: Sequence[BoundLaunch], index: int) -> DeviceForm:
        """The form of loaded launches; the first form of a process tests the C launcher."""
        with torch.cuda.device(index):
            known = all(_has_known_launcher(launch.compiled) for launch in bound if 0 not in launch.grid)
            direct = known and not torch.cuda.is_current_stream_capturing() and _probe()
        return cls(launches, bound, index, direct)

    def careful(self, run: WrittenRun, *groups: Any) -> None:
        """The slower run: for launch hooks, if another GPU is current, or if the C launcher is not a known one."""
        kept = [launch for launch in run.launches if 0 not in launch.grid]
        _CarefulRun([one.sized(launch) for one, launch in zip(self.launches, kept, strict=True)], self.index)(*groups)

    def lines(self, operands: Operands) -> list[str]:
        """The launches in order."""
        body = _addresses(self.launches, operands)
        elsewhere = "" if operands.on_device or only_gpu() else f" or k_current_device() != {self.index}"
        if not self.direct:
            return [*body, *operands.leave_to("k_run.careful")]
        body += [
            "if k_enter_calls or k_leave_calls or k_runtime.launch_enter_hook is not k_enter"
            f" or k_runtime.launch_exit_hook is not k_leave{elsewhere}:",
            *(f"    {line}" for line in operands.leave_to("k_run.careful")),
            f"k_stream = {operands.stream or f'k_current_stream({self.index})'}",
        ]
        for place, launch in enumerate(self.launches):
            body += _direct_call(place, launch, operands)
        return body


def _runtime_names(index: int) -> dict[str, Any]:
    """Names that every text uses, with their values."""
    runtime = triton.knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return {
        "k_runtime": runtime,
        "k_enter": enter,
        "k_leave": leave,
        "k_enter_calls": getattr(enter, "calls", ()),
        "k_leave_calls": getattr(leave, "calls", ()),
        "k_current_stream": current_stream,
        "k_current_device": current_device,
        "k_empty": torch.empty,
        "k_uint8": torch.uint8,
        "k_device": torch.device("cuda", index),
    }


def _addresses(launches: Sequence[BoundLaunch], operands: Operands) -> list[str]:
    """Lines that read each tensor's address once, and call the twin if a tensor assumed aligned is not."""
    tensors = {_address(op): op for launch in launches for op in launch.operands if op.kind == "tensor"}
    aligned = {_address(op) for launch in launches for op in launch.operands if op.kind == "tensor" and op.aligned}
    lines = [f"{name} = {operands.address(op.group, op.place)}" for name, op in tensors.items()]
    if aligned:
        lines += [
            f"if ({' | '.join(sorted(aligned))}) & {FULL_ALIGNMENT - 1}:",
            *(f"    {line}" for line in operands.leave_to("k_run.twin")),
        ]
    return lines


def _address(operand: Operand) -> str:
    return f"k_{operand.group}_{operand.place}"


def _launcher_names(place: int, launch: BoundLaunch) -> dict[str, Any]:
    """Names that the text of one launch uses, with their values, except for sizes."""
    kernel, launcher = launch.compiled, launch.compiled.run
    # the first name keeps the kernel alive: from Triton 3.8 on a collected kernel unloads its module
    names = {f"k_kernel_{place}": kernel, f"k_launch_{place}": launcher.launch, f"k_function_{place}": kernel.function}
    names[f"k_metadata_{place}"] = kernel.packed_metadata
    names |= {f"k_constant_{place}_{one.parameter}": one.value for one in launch.operands if one.kind == "constant"}
    if _is_annotated(launcher):
        names |= {f"k_types_{place}": launcher.arg_annotations, f"k_signature_{place}": launcher.kernel_signature}
    return names


def _is_annotated(launcher: Any) -> bool:
    """Whether the launcher is one of Triton 3.7 or later, which takes its arguments as a tuple."""
    return hasattr(launcher, "arg_annotations")


def _size_texts(place: int, number: int, launch: BoundLaunch) -> dict[str, str]:
    """Texts for ``numbers_of``, by name, of a launch's extents, numbers, and bytes of scratch."""
    texts = {f"k_{letter}_{place}": f"{letter}{number}" for letter in "xyz"}
    texts |= {f"k_value_{place}_{one.argument}": f"a{number}_{one.argument}" for one in _numbers(launch)}
    launcher = launch.compiled.run
    if launcher.global_scratch_size:
        each = launcher.num_ctas * launcher.global_scratch_size
        texts[f"k_size_{place}"] = f"x{number} * y{number} * z{number} * {each}"
    return texts


def _numbers(launch: BoundLaunch) -> list[Operand]:
    return [operand for operand in launch.operands if operand.kind == "number"]


def _direct_call(place: int, launch: BoundLaunch, operands: Operands) -> list[str]:
    launcher = launch.compiled.run
    lines, scratch = [], "None"
    if launcher.global_scratch_size:
        scratch = f"k_memory_{place}"
        lines.append(f"{scratch} = k_empty(k_size_{place}, dtype=k_uint8, device=k_device)")
    head = f"k_x_{place}, k_y_{place}, k_z_{place}, k_stream, k_function_{place}"
    head += f", {bool(launcher.launch_cooperative_grid)}, {bool(launcher.launch_pdl)}"
    given = "".join(f"{text}, " for text in _arguments(place, launch, operands))
    if _is_annotated(launcher):
        tail = f"k_metadata_{place}, None, None, None, {scratch}, None"
        tail += f", k_types_{place}, k_signature_{place}, ({given})"
    else:
        tail = f"{scratch}, None, k_metadata_{place}, None, None, None, {given.removesuffix(', ')}"
    return [*lines, f"k_launch_{place}({head}, {tail})"]


def _arguments(place: int, launch: BoundLaunch, operands: Operands) -> Iterator[str]:
    for operand in launch.operands:
        if operand.kind == "tensor":
            yield _address(operand)
        elif operand.kind == "attribute":
            yield operands.at(operand.group, operand.place)
        elif operand.kind == "number":
            yield f"k_value_{place}_{operand.argument}"
        else:
            yield f"k_constant_{place}_{operand.parameter}"


TRIED = frozenset({(3, 6), (3, 7), (3, 8), (3, 9)})
"""Versions of Triton whose C launcher was tested with the arguments of ``_direct_call``. Other versions use the
compiled kernel's own call, since a launcher would not raise if an argument had another meaning."""


def was_tried(version: str) -> bool:
    """True if the version of Triton is among those ``TRIED``."""
    numbers = version.split(".")[:2]
    return all(map(str.isdecimal, numbers)) and tuple(map(int, numbers)) in TRIED


def _has_known_launcher(kernel: Any) -> bool:
    """True if the kernel's launcher has the arguments that ``_direct_call`` gives. Loads the kernel."""
    launcher = kernel.run
    wanted = ("launch", "launch_cooperative_grid", "launch_pdl", "global_scratch_size", "num_ctas")
    return (
        was_tried(triton.__version__)
        and type(launcher).__name__ == "CudaLauncher"
        and all(hasattr(launcher, name) for name in wanted)
        and not getattr(launcher, "profile_scratch_size", 0)
        and not getattr(launcher, "gsan_enabled", False)
        and not getattr(kernel.metadata, "tensordesc_meta", None)
    )


# without annotations: Triton 3.6 looks up the names in them and refuses those that are no constexpr
@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _probe_kernel(y, x, count, factor, SIZE):  # type: ignore[no-untyped-def]
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + place, tl.load(x + place, mask=place < count) * factor, mask=place < count)


@lru_cache(maxsize=1)
def _probe() -> bool:
    """True if a direct launch writes the right numbers on this machine. Must not be called during a capture."""
    index = torch.cuda.current_device()
    major, minor = torch.cuda.get_device_capability(index)
    types = {"y": "*fp32", "x": "*fp32", "count": "i32", "factor": "fp32", "SIZE": "constexpr"}
    source = ASTSource(_probe_kernel, types, {(4,): 64}, {})
    kernel = triton.compile(source, target=GPUTarget("cuda", 10 * major + minor, 32))
    operands = (
        Operand("y", "tensor", "*fp32", "outputs", 0),
        Operand("x", "tensor", "*fp32", "arguments", 0),
        Operand("count", "number", "i32", value=100, argument=2),
        Operand("factor", "attribute", "fp32", "arguments", 1),
        Operand("SIZE", "constant", "constexpr", value=64),
    )
    if not _has_known_launcher(kernel):
        return False
    launch = Launch(_probe_kernel, (2,), ("y", "x", 100, "factor"), {"SIZE": 64})
    form = DeviceForm((launch,), [BoundLaunch(_probe_kernel, kernel, (2, 1, 1), operands, {})], index, True)
    x = torch.arange(128, dtype=torch.float32, device="cuda")
    y = torch.zeros_like(x)
    try:
        form.run((launch,), lambda: lambda *_: None)((y,), (x, 0.5), ())
        right = torch.equal(y.cpu(), torch.cat([0.5 * x[:100], x.new_zeros(28)]).cpu())
        fault = "it wrote something else than it should"
    except (TypeError, ValueError, SystemError, AttributeError) as refused:
        right, fault = False, str(refused)
    if not right:
        warnings.warn(
            f"Triton {triton.__version__}: its C launcher is not the one known here ({fault});"
            " kernels are launched through the compiled kernel's own call, about 1 µs slower",
            RuntimeWarning,
            stacklevel=2,
        )
    return right
