"""Softmax in three forms: rows in registers, rows in two passes, rows split over programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from registry import Config, Device, Launch, Problem, Space, TensorSpec
from registry.backends.estimate import row_multiple
from registry.backends.triton import TritonImplementation

from . import rows
from .kernels import softmax as kernels
from .support import common_reasons, options


class RowSoftmax(rows.RegisterRows):
    """One or several whole rows a program, read once and kept in registers; fp32 accumulation."""

    op = "softmax"
    name = "triton.row"
    kernel = kernels.row_softmax
    operands = ("y", "x")

    def preference(self, problem: Problem, device: Device) -> float:
        """Reads every row once, which nothing beats while it fits comfortably; at 32000 the online form does."""
        return 2.0 if problem.cols <= 16384 else 1.0


class OnlineSoftmax(rows.PassRows):
    """One row a program in two passes, online maximum and sum first; for rows that do not fit in registers."""

    op = "softmax"
    name = "triton.online"
    kernel = kernels.online_softmax
    operands = ("y", "x")
    tensors = 1


class SplitSoftmax(TritonImplementation):
    """Each row over several programs, in two launches with fp32 partial results; for few long rows."""

    op = "softmax"
    name = "triton.split"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from common_reasons(problem, device)
        yield from rows.pass_reasons(problem)
        if problem.cols < 8192:
            yield f"a row of {problem.cols} is too short to split (from 8192)"
        if problem.rows > 4 * device.multiprocessors:
            yield f"{problem.rows} rows keep every SM busy without splitting (limit {4 * device.multiprocessors})"

    def space(self, problem: Problem, device: Device) -> Space:
        """Programs a row, columns a step, warps."""
        splits = [
            count for count in (2, 4, 8, 16, 32, 64) if count * problem.rows <= 8 * max(device.multiprocessors, 8)
        ]

        def vectors(config: Config) -> bool:
            return bool(rows.vector_of(problem) <= config["BLOCK"] // (32 * config["num_warps"]) <= 32)

        return (
            Space(SPLITS=splits or [2], BLOCK=[1024, 2048, 4096, 8192], num_warps=[4, 8, 16], num_stages=[1])
            .require("one 16-byte vector to 32 elements a thread", vectors)
            .require("every program has columns", lambda config: config["SPLITS"] * config["BLOCK"] <= 2 * problem.cols)
        )

    def default(self, problem: Problem, device: Device) -> Config:
        """About two programs an SM."""
        wanted = min(64.0, 2 * device.multiprocessors / problem.rows)

        def distance(config: Config) -> tuple[float, int, int]:
            return abs(config["SPLITS"] - wanted), abs(config["BLOCK"] - 2048), abs(config["num_warps"] - 4)

        return min(self.space(problem, device).configs, key=distance)

    def preference(self, problem: Problem, device: Device) -> float:
        """Worth its second launch while most SMs would idle."""
        return 2.5 if problem.cols >= 32768 and 4 * problem.rows <= device.multiprocessors else 0.25

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        shape = (problem.rows, config["SPLITS"])
        return {name: TensorSpec.contiguous(shape, torch.float32) for name in ("tops", "totals")}

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        multiple = row_multiple(problem.cols)
        constants = {"MULTIPLE": multiple, "SPLITS": config["SPLITS"], **rows.pass_constants(problem, config)}
        grid = (problem.rows * config["SPLITS"],)
        units = problem.cols // multiple
        return [
            Launch(kernels.partial_softmax, grid, ("tops", "totals", "x", units), constants, options(config)),
            Launch(kernels.combine_softmax, grid, ("y", "x", "tops", "totals", units), constants, options(config)),
        ]
