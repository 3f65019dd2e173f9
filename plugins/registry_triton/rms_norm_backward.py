"""The gradients of RMS norm in two forms: rows in registers, and long rows by columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from registry import Config, Device, Launch, Problem, Space, TensorSpec
from registry.backends.estimate import elements_per_thread, fits_shared, next_power_of_2, row_multiple
from registry.backends.triton import TritonImplementation

from . import rows
from .kernels import rms_norm_backward as kernels
from .support import KEPT, common_reasons, options

_MOST_COLS = 8192
"""The longest row of which a program holds gradient, input, weight and a sum: 16384 spills 40 to 360 bytes a thread."""

_WARPS_PER_SM = 64
_DEFAULT_WARPS_PER_SM = 16
_SUM_ROWS, _SUM_COLS = 64, 32


def _needs(problem: Problem) -> dict[str, bool]:
    """Which gradients are needed, as constants of the kernels; both where only dimensions are known."""
    arguments = problem.traits.arguments
    if arguments is None:
        return {"NEED_X": True, "NEED_WEIGHT": True}
    return {"NEED_X": arguments.flag("need_x"), "NEED_WEIGHT": arguments.flag("need_weight")}


def _partial(needs: Mapping[str, bool]) -> str:
    """The name of the tensor of partial sums; without one, the name of a tensor that the kernel does not touch."""
    return "partial" if needs["NEED_WEIGHT"] else "grad_weight"


def _sum_launch(problem: Problem, count: int) -> Launch:
    """The last launch: grad_weight from ``count`` rows of partial sums."""
    multiple = row_multiple(problem.cols)
    return Launch(
        kernels.sum_partial,
        grid=(-(-problem.cols // _SUM_COLS),),
        args=("grad_weight", "partial", count, problem.cols // multiple),
        constants={"MULTIPLE": multiple, "ROWS": _SUM_ROWS, "COLS": _SUM_COLS},
        options={"num_warps": 4},
    )


class RowRmsNormBackward(TritonImplementation):
    """Whole rows in registers, read once, by resident programs that sum up the weight's gradient over their rows."""

    op = "rms_norm_backward"
    name = "triton.row"
    mixed = True

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from common_reasons(problem, device)
        if problem.cols > _MOST_COLS:
            yield f"a row of {problem.cols} does not fit in registers four times (limit {_MOST_COLS})"

    def preference(self, problem: Problem, device: Device) -> float:
        """Ahead of two passes: it reads everything once."""
        return 2.0

    def space(self, problem: Problem, device: Device) -> Space:
        """Rows at a time where they are short, warps, programs an SM, and whether the next rows are loaded ahead."""
        block = next_power_of_2(problem.cols)
        most = min(16, max(1, 2048 // block), next_power_of_2(problem.rows))
        return _row_space(block, most, problem.torch_dtype.itemsize, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """About 8 elements a thread and 16 warps an SM, which their registers leave room for."""
        return _nearest_row(self.space(problem, device), next_power_of_2(problem.cols), device)

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        if not _needs(problem)["NEED_WEIGHT"]:
            return {}
        return {"partial": TensorSpec.contiguous((_programs(problem, config, device), problem.cols), torch.float32)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        multiple, count, needs = row_multiple(problem.cols), _programs(problem, config, device), _needs(problem)
        constants: dict[str, Any] = {
            **needs,
            "MULTIPLE": multiple,
            "ROWS": config["rows_per_step"],
            "BLOCK": next_power_of_2(problem.cols),
            "STAGES": config["num_stages"],
        }
        units = problem.cols // multiple
        operands = ("grad_x", _partial(needs), "grad_y", "x", "weight", "eps", problem.rows, units)
        first = Launch(kernels.row_rms_norm_backward, (count,), operands, constants, options(config))
        return [first, _sum_launch(problem, count)] if needs["NEED_WEIGHT"] else [first]


@lru_cache(maxsize=KEPT)
def _row_space(block: int, most_rows: int, itemsize: int, device: Device) -> Space:
    def balanced(config: Config) -> bool:
        share = elements_per_thread(config["rows_per_step"] * block, config["num_warps"], device)
        return share <= 16 and (share >= 4 or config["num_warps"] == 1)

    def shared(config: Config) -> bool:
        held = 2 * config["num_stages"] * config["rows_per_step"] * block * itemsize
        return config["num_stages"] == 1 or fits_shared(held * config["programs_per_sm"], device)

    return (
        Space(
            rows_per_step=[count for count in (1, 4, 16) if count <= most_rows],
            num_warps=[count for count in rows.WARPS if count <= rows.max_warps(device)],
            programs_per_sm=[1, 2, 4, 8],
            num_stages=[1, 2],
        )
        .require("4 to 16 elements a thread", balanced)
        .require("the SM has the threads", lambda c: c["programs_per_sm"] * c["num_warps"] <= _WARPS_PER_SM)
        .require("the stages fit in shared memory", shared)
    )


@lru_cache(maxsize=KEPT)
def _nearest_row(space: Space, block: int, device: Device) -> Config:
    def distance(config: Config) -> tuple[float, ...]:
        step = config["rows_per_step"] * block
        share = elements_per_thread(step, config["num_warps"], device)
        warps = config["programs_per_sm"] * config["num_warps"]
        return abs(step - 1024), abs(share - 8), abs(warps - _DEFAULT_WARPS_PER_SM), config["num_stages"]

    return min(space.configs, key=distance)


def _programs(problem: Problem, config: Config, device: Device) -> int:
    """The number of programs: as many as stay on the device, at most one a step; one if there are no rows."""
    steps: int = -(-problem.rows // config["rows_per_step"])
    most: int = config["programs_per_sm"] * max(device.multiprocessors, 1)
    return max(min(most, steps), 1)


class ColumnsRmsNormBackward(TritonImplementation):
    """A first pass over rows for what is common to a row, a second by columns; for rows too long for registers."""

    op = "rms_norm_backward"
    name = "triton.columns"
    mixed = True

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from common_reasons(problem, device)
        yield from rows.pass_reasons(problem)

    def preference(self, problem: Problem, device: Device) -> float:
        """Below the form of one pass, since two passes read x and the gradient twice."""
        return 1.0

    def space(self, problem: Problem, device: Device) -> Space:
        """Columns a step of the first pass and of the second, warps, and programs of the second an SM."""
        return _columns_space(rows.vector_of(problem), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """8 warps and a vector a thread."""
        return _nearest_columns(self.space(problem, device), 8 * 32 * rows.vector_of(problem))

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        _, spans = _spans(problem, config, device)
        found = {name: TensorSpec.contiguous((problem.rows,), torch.float32) for name in ("inverses", "means")}
        if _needs(problem)["NEED_WEIGHT"]:
            found["partial"] = TensorSpec.contiguous((spans, problem.cols), torch.float32)
        return found

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        multiple, vector = row_multiple(problem.cols), rows.vector_of(problem)
        units, (span, spans) = problem.cols // multiple, _spans(problem, config, device)
        lanes = {"LANES": config["BLOCK"] // vector, "VECTOR": vector, "STAGES": 1}
        tile = {"ROWS": config["num_warps"], "COLS": config["COLS"]}
        common, needs = ("grad_y", "x", "weight"), _needs(problem)
        launches = [
            Launch(
                kernels.rms_norm_backward_means,
                grid=(problem.rows,),
                args=("inverses", "means", *common, "eps", units),
                constants={"MULTIPLE": multiple, **lanes, "NEED_X": needs["NEED_X"]},
                options=options(config),
            ),
            Launch(
                kernels.rms_norm_backward_columns,
                grid=(-(-problem.cols // config["COLS"]) * spans,),
                args=("grad_x", _partial(needs), "inverses", "means", *common, problem.rows, span, units),
                constants={"MULTIPLE": multiple, **tile, **needs},
                options=options(config),
            ),
        ]
        return [*launches, _sum_launch(problem, spans)] if needs["NEED_WEIGHT"] else launches


@lru_cache(maxsize=KEPT)
def _columns_space(vector: int, device: Device) -> Space:
    def vectors(config: Config) -> bool:
        return bool(vector <= elements_per_thread(config["BLOCK"], config["num_warps"], device) <= 2 * vector)

    return Space(
        BLOCK=[1024, 2048, 4096, 8192], num_warps=[4, 8, 16], COLS=[128, 256, 512], programs_per_sm=[2, 4]
    ).require("one or two 16-byte vectors a thread", vectors)


@lru_cache(maxsize=KEPT)
def _nearest_columns(space: Space, block: int) -> Config:
    def distance(config: Config) -> tuple[int, ...]:
        return abs(config["num_warps"] - 8), abs(config["BLOCK"] - block), abs(config["COLS"] - 256)

    return min(space.configs, key=distance)


def _spans(problem: Problem, config: Config, device: Device) -> tuple[int, int]:
    """Rows of each program of the second pass, whole steps of as many as warps, and how many such spans there are."""
    blocks = -(-problem.cols // config["COLS"])
    most: int = max(1, config["programs_per_sm"] * max(device.multiprocessors, 1) // blocks)
    steps: int = -(-problem.rows // config["num_warps"])
    if steps <= most:
        return config["num_warps"], max(steps, 1)
    return -(-steps // most) * config["num_warps"], most
