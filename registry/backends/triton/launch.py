"""Launching compiled Triton kernels with little host time. All that is private to Triton stands here.

Three ways, the first that works: the C launcher inside a compiled kernel with addresses as integers (0.5 to 0.6 µs),
the compiled kernel's own call (1.2 to 1.5 µs), the JIT function's (7 to 8 µs). The first is trusted only after one
launch in this process has written what it should.
"""

from __future__ import annotations

import contextvars
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ...errors import OutOfResourcesError
from ...implementation import RowsRun, Run, Tensors
from ...problem import FULL_ALIGNMENT
from ...symbolic import is_symbolic, text_of, value_at
from ..cuda_stream import current_device, current_stream, only_gpu
from ..written_run import Operands, Written, run_of
from .variant import Operand

_MAX_GRID = 2**31 - 1
_MAX_GRID_YZ = 65535
_GROUPS = ("outputs", "arguments", "scratch")


@dataclass(frozen=True)
class BoundLaunch:
    """A loaded kernel with its grid and operands. ``compiled`` is None in the interpreter, where ``jit`` runs.

    Extents and numbers of a run for many row counts are symbolic.
    """

    jit: Any
    compiled: Any
    grid: tuple[int, int, int]
    operands: tuple[Operand, ...]
    options: Mapping[str, Any]

    def at(self, rows: int) -> BoundLaunch:
        """The launch for one row count."""
        x, y, z = (value_at(extent, rows) for extent in self.grid)
        operands = tuple(replace(operand, value=value_at(operand.value, rows)) for operand in self.operands)
        return replace(self, grid=(x, y, z), operands=operands)


def full_grid(grid: Sequence[int], title: str) -> tuple[int, int, int]:
    """Three extents. Raises OutOfResourcesError for more programs than a launch may have.

    Triton multiplies the extents in a C int: 65536 × 65536 programs are zero to it and nothing is launched.
    """
    x, y, z = (*grid, 1, 1, 1)[:3]
    # one by one: min and max would ask more of a size that stands for many
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


def interpreted_rows_run(launches: Sequence[BoundLaunch]) -> RowsRun:
    """The same for many row counts."""

    def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors, rows: int) -> None:
        interpreted_run([launch.at(rows) for launch in launches])(outputs, arguments, scratch)

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


def device_run(launches: Sequence[BoundLaunch], index: int, twin: Run) -> Run:
    """A run on CUDA device ``index``. ``twin`` runs instead when a tensor assumed aligned is not."""
    run: Run = _device_run(launches, index, twin, rows=False)
    return run


def device_rows_run(launches: Sequence[BoundLaunch], index: int, twin: RowsRun) -> RowsRun:
    """The same for many row counts."""
    run: RowsRun = _device_run(launches, index, twin, rows=True)
    return run


def _device_run(launches: Sequence[BoundLaunch], index: int, twin: Callable[..., Any], *, rows: bool) -> Any:
    launches = [launch for launch in launches if 0 not in launch.grid]
    careful = _careful_run(launches, index)
    with torch.cuda.device(index):
        direct = all(_has_known_launcher(launch.compiled) for launch in launches) and _probe_passed()
    return _generated_run(launches, index, careful, twin, direct, rows)


def _value(operand: Operand, groups: Mapping[str, tuple[Any, ...]]) -> Any:
    return groups[operand.group][operand.place] if operand.group else operand.value


def _careful_run(launches: Sequence[BoundLaunch], index: int) -> Callable[..., None]:
    """Through compiled kernels' own call: it serves launch hooks, any current device and any launcher.

    The run takes the row count behind its other arguments where launches depend on it.
    """
    callable_kernels = all(hasattr(type(launch.compiled), "__getitem__") for launch in launches)
    scratch_needed = any(getattr(launch.compiled.metadata, "global_scratch_size", 0) for launch in launches)

    def launch_all(groups: Mapping[str, tuple[Any, ...]], rows: tuple[int, ...]) -> None:
        now = [launch.at(*rows) for launch in launches] if rows else launches
        if not callable_kernels:
            _launch_jit(now, groups)
            return
        for launch in now:
            launch.compiled[launch.grid](*[_value(operand, groups) for operand in launch.operands])

    def launch_with_allocator(groups: Mapping[str, tuple[Any, ...]], rows: tuple[int, ...]) -> None:
        triton.set_allocator(lambda size, _align, _stream: torch.empty(size, dtype=torch.uint8, device=device))
        launch_all(groups, rows)

    device = torch.device("cuda", index)

    def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors, *rows: int) -> None:
        groups = {"outputs": outputs, "arguments": arguments, "scratch": scratch}
        with torch.cuda.device(index):
            if scratch_needed:
                # Triton keeps its allocator in a context variable, which is empty in every new thread
                contextvars.copy_context().run(launch_with_allocator, groups, rows)
            else:
                launch_all(groups, rows)

    return run


def _generated_run(
    launches: Sequence[BoundLaunch],
    index: int,
    careful: Callable[..., Any],
    twin: Callable[..., Any],
    direct: bool,
    rows: bool = False,
) -> Any:
    """The hot path, as one function without a loop: each loop or tuple here costs as much as a third of the launch.

    ``rows``: the run serves many row counts.
    """
    runtime, alone = triton.knobs.runtime, only_gpu()
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    names: dict[str, Any] = {
        "k_runtime": runtime,
        "k_enter": enter,
        "k_leave": leave,
        "k_enter_calls": getattr(enter, "calls", ()),
        "k_leave_calls": getattr(leave, "calls", ()),
        "k_careful": careful,
        "k_twin": twin,
        "k_current_stream": current_stream,
        "k_current_device": current_device,
        "k_empty": torch.empty,
        "k_uint8": torch.uint8,
        "k_device": torch.device("cuda", index),
    }
    calls = [_direct_call(place, launch, names) for place, launch in enumerate(launches)] if direct else []

    def lines(operands: Operands) -> list[str]:
        body = _addresses(launches, operands)
        elsewhere = "" if operands.on_device or alone else f" or k_current_device() != {index}"
        if not direct:
            return [*body, *operands.leave_to("k_careful")]
        body += [
            "if k_enter_calls or k_leave_calls or k_runtime.launch_enter_hook is not k_enter"
            f" or k_runtime.launch_exit_hook is not k_leave{elsewhere}:",
            *(f"    {line}" for line in operands.leave_to("k_careful")),
            f"k_stream = {operands.stream or f'k_current_stream({index})'}",
        ]
        return [*body, *(line for call in calls for line in call(operands))]

    return run_of(Written(lines, names), rows=rows)


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


def _direct_call(place: int, launch: BoundLaunch, names: dict[str, Any]) -> Callable[[Operands], list[str]]:
    """What writes the lines of one launch."""
    kernel, launcher = launch.compiled, launch.compiled.run
    # the name keeps the kernel: from Triton 3.8 on its module is unloaded when it is collected
    names |= {f"k_kernel_{place}": kernel, f"k_launch_{place}": launcher.launch, f"k_function_{place}": kernel.function}
    names |= {f"k_metadata_{place}": kernel.packed_metadata}
    for number, operand in enumerate(launch.operands):
        names[f"k_value_{place}_{number}"] = operand.value
    lines, scratch = [], "None"
    if launcher.global_scratch_size:
        programs = launch.grid[0] * launch.grid[1] * launch.grid[2] * launcher.num_ctas
        size = _shown(programs * launcher.global_scratch_size)
        scratch = f"k_memory_{place}"
        lines.append(f"{scratch} = k_empty({size}, dtype=k_uint8, device=k_device)")
    head = f"{', '.join(map(_shown, launch.grid))}, k_stream, k_function_{place}"
    head += f", {bool(launcher.launch_cooperative_grid)}, {bool(launcher.launch_pdl)}"
    annotated = hasattr(launcher, "arg_annotations")  # Triton 3.7 and later
    if annotated:
        names |= {f"k_types_{place}": launcher.arg_annotations, f"k_signature_{place}": launcher.kernel_signature}

    def write(operands: Operands) -> list[str]:
        given = "".join(f"{text}, " for text in _arguments(place, launch, operands))
        if annotated:
            tail = f"k_metadata_{place}, None, None, None, {scratch}, None"
            tail += f", k_types_{place}, k_signature_{place}, ({given})"
        else:
            tail = f"{scratch}, None, k_metadata_{place}, None, None, None, {given.removesuffix(', ')}"
        return [*lines, f"k_launch_{place}({head}, {tail})"]

    return write


def _arguments(place: int, launch: BoundLaunch, operands: Operands) -> Iterator[str]:
    for number, operand in enumerate(launch.operands):
        if operand.kind == "tensor":
            yield _address(operand)
        elif operand.kind == "attribute":
            yield operands.at(operand.group, operand.place)
        elif is_symbolic(operand.value):
            yield text_of(operand.value)
        else:
            yield f"k_value_{place}_{number}"


def _shown(number: Any) -> str:
    return text_of(number) if is_symbolic(number) else str(number)


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


# without annotations: Triton 3.6 looks up the names in them and refuses what is no constexpr
@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _probe_kernel(y, x, count, factor, SIZE):  # type: ignore[no-untyped-def]
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + place, tl.load(x + place, mask=place < count) * factor, mask=place < count)


def _probe_passed() -> bool:
    """Whether a direct launch does on this machine what it should; False, for now, while a graph is being captured."""
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
    x = torch.arange(128, dtype=torch.float32, device="cuda")
    y = torch.zeros_like(x)
    try:
        _generated_run([launch], index, _careful_run([launch], index), interpreted_run([launch]), direct=True)(
            (y,), (x, 0.5), ()
        )
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
