"""RMS norm in two forms: rows in registers, and rows in two passes."""

from __future__ import annotations

from collections.abc import Iterable

from registry import Config, Device, Launch, Problem, Space
from registry.backends.estimate import next_power_of_2, row_multiple
from registry.backends.triton import TritonImplementation

from . import rows
from .kernels import rms_norm as kernels
from .support import common_reasons, options


class RowRmsNorm(TritonImplementation):
    """One or several whole rows a program, read once and kept in registers; fp32 accumulation."""

    op = "rms_norm"
    name = "triton.row"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from common_reasons(problem, device)
        yield from rows.register_reasons(problem)

    def space(self, problem: Problem, device: Device) -> Space:
        return rows.register_space(problem, device)

    def default(self, problem: Problem, device: Device) -> Config:
        return rows.register_default(problem, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Reads every row once, which nothing beats while it fits comfortably."""
        return 2.0 if problem.cols <= 32768 else 1.0

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        count = config["rows_per_program"]
        multiple = row_multiple(problem.cols)
        return Launch(
            kernels.row_rms_norm,
            grid=(-(-problem.rows // count),),
            args=("y", "x", "weight", "eps", problem.rows, problem.cols // multiple),
            constants={"MULTIPLE": multiple, "ROWS": count, "BLOCK": next_power_of_2(problem.cols)},
            options=options(config),
        )


class LoopedRmsNorm(TritonImplementation):
    """One row a program in two passes, the sum of squares first; for rows that do not fit in registers."""

    op = "rms_norm"
    name = "triton.looped"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from common_reasons(problem, device)
        yield from rows.pass_reasons(problem)

    def space(self, problem: Problem, device: Device) -> Space:
        return rows.pass_space(problem, device, tensors=2)

    def default(self, problem: Problem, device: Device) -> Config:
        return rows.pass_default(problem, device, tensors=2)

    def preference(self, problem: Problem, device: Device) -> float:
        """Right for long rows; a row that fits in registers need not be read twice."""
        return 1.5 if problem.cols > 2048 else 0.5

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        multiple = row_multiple(problem.cols)
        return Launch(
            kernels.looped_rms_norm,
            grid=(problem.rows,),
            args=("y", "x", "weight", "eps", problem.cols // multiple),
            constants={"MULTIPLE": multiple, **rows.pass_constants(problem, config)},
            options=options(config),
        )
