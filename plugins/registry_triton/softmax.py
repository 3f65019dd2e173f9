"""Softmax in three forms: rows in registers, rows in two passes, rows split over programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import torch

from registry import Config, Device, Launch, Problem, Space, TensorSpec
from registry.backends.estimate import row_multiple
from registry.backends.triton import TritonImplementation

from . import rows
from .kernels import softmax as kernels
from .support import KEPT, common_reasons, options


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
        most = 8 * max(device.multiprocessors, 8) // max(problem.rows, 1)
        # both are compared with powers of two
        most_splits, most_cols = (1 << number.bit_length() >> 1 for number in (most, 2 * problem.cols))
        return _split_space(max(2, min(most_splits, 64)), min(most_cols, 2**19), rows.vector_of(problem))

    def default(self, problem: Problem, device: Device) -> Config:
        """About two programs an SM."""
        wanted = min(64.0, 2 * device.multiprocessors / max(problem.rows, 1))

        def distance(config: Config) -> tuple[float, int]:
            return abs(config["SPLITS"] - wanted), abs(config["BLOCK"] - 2048)

        return min(_by_splits(self.space(problem, device)), key=distance)

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


@lru_cache(maxsize=KEPT)
def _split_space(most_splits: int, most_cols: int, vector: int) -> Space:
    def vectors(config: Config) -> bool:
        return bool(vector <= config["BLOCK"] // (32 * config["num_warps"]) <= 32)

    splits = [count for count in (2, 4, 8, 16, 32, 64) if count <= most_splits]
    return (
        Space(SPLITS=splits, BLOCK=[1024, 2048, 4096, 8192], num_warps=[4, 8, 16], num_stages=[1])
        .require("one 16-byte vector to 32 elements a thread", vectors)
        .require("every program has columns", lambda config: config["SPLITS"] * config["BLOCK"] <= most_cols)
    )


@lru_cache(maxsize=KEPT)
def _by_splits(space: Space) -> tuple[Config, ...]:
    """The configuration nearest to 2048 columns a step and 4 warps, for each number of splits."""

    def distance(config: Config) -> tuple[int, int]:
        return abs(config["BLOCK"] - 2048), abs(config["num_warps"] - 4)

    splits = dict.fromkeys(config["SPLITS"] for config in space.configs)
    return tuple(
        min((config for config in space.configs if config["SPLITS"] == count), key=distance) for count in splits
    )
