"""Launching compiled Triton kernels with little host time. All that is private to Triton stands here.

Three ways, the first that works: the C launcher inside a compiled kernel with addresses as integers (0.5 to 0.6 µs),
the compiled kernel's own call (1.2 to 1.5 µs), the JIT function's (7 to 8 µs). The first is trusted only after one
launch in this process has written what it should.
"""

from __future__ import annotations

import contextvars
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ..errors import OutOfResourcesError
from ..implementation import RowsRun, Run, Tensors
from ..problem import FULL_ALIGNMENT
from ..symbolic import is_symbolic, text_of, value_at
from .triton_variant import Operand

_MAX_GRID = 2**31 - 1
_MAX_GRID_YZ = 65535
_GROUPS = ("outputs", "arguments", "scratch")

current_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream
)
current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


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
    run: Run = _device_run(launches, index, twin, "")
    return run


def device_rows_run(launches: Sequence[BoundLaunch], index: int, twin: RowsRun) -> RowsRun:
    """The same for many row counts."""
    run: RowsRun = _device_run(launches, index, twin, ", rows")
    return run


def _device_run(launches: Sequence[BoundLaunch], index: int, twin: Callable[..., Any], rows: str) -> Any:
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
    rows: str = "",
) -> Any:
    """The hot path, as one function without a loop: each loop or tuple here costs as much as a third of the launch.

    ``rows`` is ``", rows"`` for a run of many row counts.
    """
    runtime = triton.knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    names: dict[str, Any] = {
        "runtime": runtime,
        "enter": enter,
        "leave": leave,
        "enter_calls": getattr(enter, "calls", ()),
        "leave_calls": getattr(leave, "calls", ()),
        "careful": careful,
        "twin": twin,
        "current_stream": current_stream,
        "current_device": current_device,
        "empty": torch.empty,
        "uint8": torch.uint8,
        "device": torch.device("cuda", index),
    }
    body = _addresses(launches, rows)
    if direct:
        body += [
            "if enter_calls or leave_calls or runtime.launch_enter_hook is not enter"
            f" or runtime.launch_exit_hook is not leave or current_device() != {index}:",
            f"    return careful(outputs, arguments, scratch{rows})",
            f"stream = current_stream({index})",
        ]
        for place, launch in enumerate(launches):
            body += _direct_call(place, launch, names)
    else:
        body.append(f"return careful(outputs, arguments, scratch{rows})")
    source = f"def run(outputs, arguments, scratch{rows}):\n" + "".join(f"    {line}\n" for line in body)
    exec(compile(source, "<triton launch>", "exec"), names)
    return names["run"]


def _addresses(launches: Sequence[BoundLaunch], rows: str) -> list[str]:
    """Lines that take each tensor's address once, and turn to the twin if one assumed aligned is not."""
    tensors = {_address(operand): operand for launch in launches for operand in launch.operands if _is_tensor(operand)}
    aligned = {_address(op) for launch in launches for op in launch.operands if _is_tensor(op) and op.aligned}
    lines = [f"{name} = {op.group}[{op.place}].data_ptr()" for name, op in tensors.items()]
    if aligned:
        lines += [
            f"if ({' | '.join(sorted(aligned))}) & {FULL_ALIGNMENT - 1}:",
            f"    return twin(outputs, arguments, scratch{rows})",
        ]
    return lines


def _is_tensor(operand: Operand) -> bool:
    return operand.kind == "tensor"


def _address(operand: Operand) -> str:
    return f"{operand.group}_{operand.place}"


def _direct_call(place: int, launch: BoundLaunch, names: dict[str, Any]) -> list[str]:
    kernel, launcher = launch.compiled, launch.compiled.run
    # the name keeps the kernel: from Triton 3.8 on its module is unloaded when it is collected
    names |= {f"kernel_{place}": kernel, f"launch_{place}": launcher.launch, f"function_{place}": kernel.function}
    names |= {f"metadata_{place}": kernel.packed_metadata}
    arguments = []
    for number, operand in enumerate(launch.operands):
        if operand.kind == "tensor":
            arguments.append(_address(operand))
        elif operand.kind == "attribute":
            arguments.append(f"{operand.group}[{operand.place}]")
        elif is_symbolic(operand.value):
            arguments.append(text_of(operand.value))
        else:
            names[f"value_{place}_{number}"] = operand.value
            arguments.append(f"value_{place}_{number}")
    lines, scratch = [], "None"
    if launcher.global_scratch_size:
        programs = launch.grid[0] * launch.grid[1] * launch.grid[2] * launcher.num_ctas
        scratch = f"memory_{place}"
        lines.append(
            f"{scratch} = empty({_shown(programs * launcher.global_scratch_size)}, dtype=uint8, device=device)"
        )
    head = f"{', '.join(map(_shown, launch.grid))}, stream, function_{place}"
    head += f", {bool(launcher.launch_cooperative_grid)}, {bool(launcher.launch_pdl)}"
    listed = "".join(f"{argument}, " for argument in arguments)
    if hasattr(launcher, "arg_annotations"):  # Triton 3.7 and later
        names |= {f"types_{place}": launcher.arg_annotations, f"signature_{place}": launcher.kernel_signature}
        tail = f"metadata_{place}, None, None, None, {scratch}, None, types_{place}, signature_{place}, ({listed})"
    else:
        tail = f"{scratch}, None, metadata_{place}, None, None, None, {listed.removesuffix(', ')}"
    return [*lines, f"launch_{place}({head}, {tail})"]


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
