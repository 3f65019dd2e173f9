"""A kernel's launch with its grid and operands, and its run by the kernel's JIT function, as in the interpreter."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ...arguments.expansion import without_repeats
from ...errors import OutOfResourcesError
from ...implementation import Launch, Run, Tensors
from .variant import Operand

_INTERPRETING = threading.RLock()

MOST_PROGRAMS = _MAX_GRID, _MAX_GRID_YZ = 2**31 - 1, 65535
"""The most programs of a launch, and the greatest second and third extent of its grid."""


class BoundLaunch(NamedTuple):
    """A loaded kernel with its grid and operands. ``compiled`` is None in the interpreter, where ``jit`` runs."""

    jit: Any
    compiled: Any
    grid: tuple[int, int, int]
    operands: tuple[Operand, ...]
    options: Mapping[str, Any]

    def sized(self, launch: Launch) -> BoundLaunch:
        """This launch with the extents and numbers of ``launch``, which has the same form."""
        operands = [
            one._replace(value=launch.args[one.argument]) if one.kind == "number" else one for one in self.operands
        ]
        return self._replace(grid=full_grid(launch.grid, launch.place), operands=tuple(operands))


def full_grid(grid: Sequence[int], title: str) -> tuple[int, int, int]:
    """``grid`` as three extents. Raises OutOfResourcesError for more programs than a launch may have.

    Triton multiplies the extents in a C int: 65536 × 65536 overflows to 0, and nothing would be launched.
    """
    x, y, z = (*grid, 1, 1, 1)[:3]
    if len(grid) > 3 or min(x, y, z) < 0:
        raise OutOfResourcesError(f"{title}: grid {tuple(grid)}; expected up to three extents of at least 0")
    if x * y * z > _MAX_GRID or y > _MAX_GRID_YZ or z > _MAX_GRID_YZ:
        raise OutOfResourcesError(
            f"{title}: grid {x} x {y} x {z} is more than a launch may have"
            f" ({_MAX_GRID} programs, {_MAX_GRID_YZ} in the second and third extent)",
            hint="give each program more work, or loop inside the kernel over a smaller grid",
        )
    return x, y, z


def interpreted_run(launches: Sequence[BoundLaunch]) -> Run:
    """A run through ``kernel[grid](...)`` in Triton's interpreter.

    The interpreter cuts fp32 off to bfloat16 where the hardware rounds, and its ``tl.dot`` takes bfloat16 for integers:
    kernels get fp32 copies of bfloat16 tensors, and torch rounds the results. It keeps the program's place in the grid
    in one variable of the process, so threads run one after another.
    """

    def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
        groups = {"outputs": outputs, "arguments": arguments, "scratch": scratch}
        wide = {name: tuple(map(_widened, values)) for name, values in groups.items()}
        with _INTERPRETING:
            launch_jit(launches, wide)
        for name, values in groups.items():
            for value, copy in zip(values, wide[name], strict=True):
                if copy is not value and not torch.equal(copy, value.float()):
                    without_repeats(value.detach()).copy_(without_repeats(copy))

    return run


def _widened(value: Any) -> Any:
    """A float32 copy of a bfloat16 tensor with its strides, which the kernel may have got; any other value itself."""
    if not isinstance(value, torch.Tensor) or value.dtype != torch.bfloat16:
        return value
    wide = value.detach().float()
    if wide.stride() == value.stride():
        return wide
    copy = torch.empty_strided(value.shape, value.stride(), dtype=torch.float32)
    without_repeats(copy).copy_(without_repeats(value.detach()))
    return copy


def launch_jit(launches: Sequence[BoundLaunch], groups: Mapping[str, tuple[Any, ...]]) -> None:
    for launch in launches:
        if 0 not in launch.grid:
            values = {operand.parameter: value_of(operand, groups) for operand in launch.operands}
            launch.jit[launch.grid](**values, **launch.options)


def value_of(operand: Operand, groups: Mapping[str, tuple[Any, ...]]) -> Any:
    return groups[operand.group][operand.place] if operand.group else operand.value
