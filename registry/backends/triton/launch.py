"""Launching compiled Triton kernels with little host time. All that is private to Triton stands here.

Three ways, the first that works: the C launcher inside a compiled kernel with addresses as integers (0.5 to 0.6 µs),
the compiled kernel's own call (1.2 to 1.5 µs), the JIT function's (7 to 8 µs). The first is trusted only after one
launch in this process has written the right numbers.
"""

from __future__ import annotations

import contextvars
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ...errors import OutOfResourcesError
from ...implementation import Launch, Run, Tensors
from ...problem import FULL_ALIGNMENT
from ..cuda_stream import current_device, current_stream, only_gpu
from ..written_run import Operands, Written, WrittenRun
from .variant import Operand

_MAX_GRID = 2**31 - 1
_MAX_GRID_YZ = 65535
_GROUPS = ("outputs", "arguments", "scratch")


@dataclass(frozen=True)
class BoundLaunch:
    """A loaded kernel with its grid and operands. ``compiled`` is None in the interpreter, where ``jit`` runs."""

    jit: Any
    compiled: Any
    grid: tuple[int, int, int]
    operands: tuple[Operand, ...]
    options: Mapping[str, Any]

    def sized(self, launch: Launch, grid: tuple[int, int, int]) -> BoundLaunch:
        """This launch with the extents and numbers of another one of its form."""
        given = iter(launch.args)
        # a parameter that is no constant of the launch takes the next argument
        free = [(operand, None if operand.parameter in launch.constants else next(given)) for operand in self.operands]
        operands = tuple([_with_number(one, value) if one.kind == "number" else one for one, value in free])
        return BoundLaunch(self.jit, self.compiled, grid, operands, self.options)


def _with_number(operand: Operand, value: Any) -> Operand:
    return Operand(operand.parameter, operand.kind, operand.type, value=value, aligned=operand.aligned)


def full_grid(grid: Sequence[int], title: str) -> tuple[int, int, int]:
    """Three extents. Raises OutOfResourcesError for more programs than a launch may have.

    Triton multiplies the extents in a C int: 65536 × 65536 programs are zero to it and nothing is launched.
    """
    x, y, z = (*grid, 1, 1, 1)[:3]
    if len(grid) > 3 or any(extent < 0 for extent in (x, y, z)):
        raise OutOfResourcesError(f"{title}: grid {tuple(grid)}; expected up to three extents of at least 0")
    if x * y * z > _MAX_GRID or y > _MAX_GRID_YZ or z > _MAX_GRID_YZ:
        raise OutOfResourcesError(
            f"{title}: grid {x} x {y} x {z} is more than a launch may have"
            f" ({_MAX_GRID} programs, {_MAX_GRID_YZ} in the second and third extent)",
            hint="give each program more work, or loop inside the kernel over a smaller grid",
        )
    return x, y, z


def load(kernel: Any) -> None:
    """Load a compiled kernel on the current device. Raises Triton's OutOfResources when it cannot run there."""
    kernel.run  # noqa: B018 - reading it loads, in every version


def interpreted_run(launches: Sequence[BoundLaunch]) -> Run:
    """A run through ``kernel[grid](...)`` in Triton's interpreter.

    The interpreter cuts fp32 off to bfloat16 where the hardware rounds, and its ``tl.dot`` takes bfloat16 for integers:
    kernels get fp32 copies of bfloat16 tensors, and torch rounds what they wrote.
    """

    def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
        groups = {"outputs": outputs, "arguments": arguments, "scratch": scratch}
        wide = {name: tuple(map(_widened, values)) for name, values in groups.items()}
        _launch_jit(launches, wide)
        for name, values in groups.items():
            for value, copy in zip(values, wide[name], strict=True):
                if copy is not value and not torch.equal(copy, value.float()):
                    value.detach().copy_(copy)

    return run


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
        return value.detach().float()
    return value


def _launch_jit(launches: Sequence[BoundLaunch], groups: Mapping[str, tuple[Any, ...]]) -> None:
    for launch in launches:
        if 0 not in launch.grid:
            values = {operand.parameter: _value(operand, groups) for operand in launch.operands}
            launch.jit[launch.grid](**values, **launch.options)


def _value(operand: Operand, groups: Mapping[str, tuple[Any, ...]]) -> Any:
    return groups[operand.group][operand.place] if operand.group else operand.value


class _CarefulRun:
    """A run through compiled kernels' own call: it serves launch hooks, any current device and any launcher."""

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
            _launch_jit(self._launches, groups)
            return
        for launch in self._launches:
            launch.compiled[launch.grid](*[_value(operand, groups) for operand in launch.operands])

    def _launch_with_allocator(self, groups: Mapping[str, tuple[Any, ...]]) -> None:
        device = torch.device("cuda", self._index)
        triton.set_allocator(lambda size, _align, _stream: torch.empty(size, dtype=torch.uint8, device=device))
        self._launch(groups)


@dataclass(frozen=True, eq=False)
class DeviceForm:
    """Launches on a device without their extents and numbers. ``launches`` are those of the first run of the form.

    Its text is the hot path, one function without a loop: each loop or tuple here costs as much as a third of the
    launch. ``direct``: through the C launcher.
    """

    launches: tuple[BoundLaunch, ...]
    index: int
    direct: bool
    names: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, launches: Sequence[BoundLaunch], index: int) -> DeviceForm:
        """The form of loaded launches; the first of a process tests the C launcher."""
        kept = tuple(launch for launch in launches if 0 not in launch.grid)
        with torch.cuda.device(index):
            direct = all(_has_known_launcher(launch.compiled) for launch in kept) and _probe_passed()
        return cls.made(kept, index, direct)

    @classmethod
    def made(cls, launches: tuple[BoundLaunch, ...], index: int, direct: bool) -> DeviceForm:
        """The form with all that does not change with a size behind its names."""
        runtime = triton.knobs.runtime
        enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
        names: dict[str, Any] = {
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
        for place, launch in enumerate(launches if direct else ()):
            names |= _launcher_names(place, launch)
        return cls(launches, index, direct, names)

    def run(self, launches: Sequence[BoundLaunch], twin: Callable[..., Any]) -> Run:
        """A run of launches of this form with their extents and numbers."""
        kept = [launch for launch in launches if 0 not in launch.grid]
        names = {**self.names, "k_careful": _CarefulRun(kept, self.index), "k_twin": twin}
        for place, launch in enumerate(kept if self.direct else ()):
            names |= _size_names(place, launch)
        return WrittenRun(Written(self, self._lines, names))

    def _lines(self, operands: Operands) -> list[str]:
        body = _addresses(self.launches, operands)
        elsewhere = "" if operands.on_device or only_gpu() else f" or k_current_device() != {self.index}"
        if not self.direct:
            return [*body, *operands.leave_to("k_careful")]
        body += [
            "if k_enter_calls or k_leave_calls or k_runtime.launch_enter_hook is not k_enter"
            f" or k_runtime.launch_exit_hook is not k_leave{elsewhere}:",
            *(f"    {line}" for line in operands.leave_to("k_careful")),
            f"k_stream = {operands.stream or f'k_current_stream({self.index})'}",
        ]
        return [
            *body,
            *(line for place, launch in enumerate(self.launches) for line in _direct_call(place, launch, operands)),
        ]


def _addresses(launches: Sequence[BoundLaunch], operands: Operands) -> list[str]:
    """Lines that take each tensor's address once, and turn to the twin if one assumed aligned is not."""
    tensors = {_address(operand): operand for launch in launches for operand in launch.operands if _is_tensor(operand)}
    aligned = {_address(op) for launch in launches for op in launch.operands if _is_tensor(op) and op.aligned}
    lines = [f"{name} = {operands.address(op.group, op.place)}" for name, op in tensors.items()]
    if aligned:
        lines += [
            f"if ({' | '.join(sorted(aligned))}) & {FULL_ALIGNMENT - 1}:",
            *(f"    {line}" for line in operands.leave_to("k_twin")),
        ]
    return lines


def _is_tensor(operand: Operand) -> bool:
    return operand.kind == "tensor"


def _address(operand: Operand) -> str:
    return f"k_{operand.group}_{operand.place}"


def _launcher_names(place: int, launch: BoundLaunch) -> dict[str, Any]:
    """All of a launch that its text reaches for and that is no size."""
    kernel, launcher = launch.compiled, launch.compiled.run
    # the first name keeps the kernel: from Triton 3.8 on its module is unloaded when it is collected
    names = {f"k_kernel_{place}": kernel, f"k_launch_{place}": launcher.launch, f"k_function_{place}": kernel.function}
    names[f"k_metadata_{place}"] = kernel.packed_metadata
    if _is_annotated(launcher):
        names |= {f"k_types_{place}": launcher.arg_annotations, f"k_signature_{place}": launcher.kernel_signature}
    return names


def _is_annotated(launcher: Any) -> bool:
    """Whether the launcher is one of Triton 3.7 or later, which takes its arguments as a tuple."""
    return hasattr(launcher, "arg_annotations")


def _size_names(place: int, launch: BoundLaunch) -> dict[str, Any]:
    """Extents and numbers of a launch."""
    x, y, z = launch.grid
    names: dict[str, Any] = {f"k_x_{place}": x, f"k_y_{place}": y, f"k_z_{place}": z}
    for number, operand in enumerate(launch.operands):
        if not operand.group:
            names[f"k_value_{place}_{number}"] = operand.value
    launcher = launch.compiled.run
    if launcher.global_scratch_size:
        names[f"k_size_{place}"] = x * y * z * launcher.num_ctas * launcher.global_scratch_size
    return names


def _direct_call(place: int, launch: BoundLaunch, operands: Operands) -> list[str]:
    """The lines of one launch."""
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
    for number, operand in enumerate(launch.operands):
        if operand.kind == "tensor":
            yield _address(operand)
        elif operand.kind == "attribute":
            yield operands.at(operand.group, operand.place)
        else:
            yield f"k_value_{place}_{number}"


def _has_known_launcher(kernel: Any) -> bool:
    """Whether the launcher is the one whose arguments ``_direct_call`` knows. Loads the kernel."""
    launcher = kernel.run
    wanted = ("launch", "launch_cooperative_grid", "launch_pdl", "global_scratch_size", "num_ctas")
    return (
        type(launcher).__name__ == "CudaLauncher"
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


def _probe_passed() -> bool:
    """True if a direct launch writes the right numbers on this machine; False while a graph is being captured."""
    return not torch.cuda.is_current_stream_capturing() and _probe()


@lru_cache(maxsize=1)
def _probe() -> bool:
    index = torch.cuda.current_device()
    major, minor = torch.cuda.get_device_capability(index)
    types = {"y": "*fp32", "x": "*fp32", "count": "i32", "factor": "fp32", "SIZE": "constexpr"}
    source = ASTSource(_probe_kernel, types, {(4,): 64}, {})
    kernel = triton.compile(source, target=GPUTarget("cuda", 10 * major + minor, 32))
    operands = (
        Operand("y", "tensor", "*fp32", "outputs", 0),
        Operand("x", "tensor", "*fp32", "arguments", 0),
        Operand("count", "number", "i32", value=100),
        Operand("factor", "attribute", "fp32", "arguments", 1),
        Operand("SIZE", "constant", "constexpr", value=64),
    )
    if not _has_known_launcher(kernel):
        return False
    launch = BoundLaunch(_probe_kernel, kernel, (2, 1, 1), operands, {})
    form = DeviceForm.made((launch,), index, True)
    x = torch.arange(128, dtype=torch.float32, device="cuda")
    y = torch.zeros_like(x)
    try:
        form.run([launch], interpreted_run([launch]))((y,), (x, 0.5), ())
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
