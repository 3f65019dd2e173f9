"""The gradients of RMS norm in two forms: rows in registers, and long rows by columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from registry import Config, Device, Launch, Problem, Space, TensorSpec
from registry.backends.estimate import elements_per_thread, fits_shared, next_power_of_2, row_multiple
from registry.backends.triton import TritonImplementation

from . import rows
from .kernels import rms_norm_backward as kernels
from .support import common_reasons, options

_MOST_COLS = 8192
"""The longest row of which a program holds gradient, input, weight and a sum: 16384 spills 40 to 360 bytes a thread."""

_WARPS_PER_SM = 64
_DEFAULT_WARPS_PER_SM = 16
_SUM_ROWS, _SUM_COLS = 64, 32


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

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from common_reasons(problem, device)
        if problem.cols > _MOST_COLS:
            yield f"a row of {problem.cols} does not fit in registers four times (limit {_MOST_COLS})"

    def preference(self, problem: Problem, device: Device) -> float:
        """Reads everything once."""
        return 2.0

    def space(self, problem: Problem, device: Device) -> Space:
        """Rows at a time where they are short, warps, programs an SM, and whether the next rows are loaded ahead."""
        block = next_power_of_2(problem.cols)
        most = min(16, max(1, 2048 // block), next_power_of_2(problem.rows))
        warps = [count for count in rows.WARPS if count <= rows.max_warps(device)]

        def balanced(config: Config) -> bool:
            share = elements_per_thread(config["rows_per_step"] * block, config["num_warps"], device)
            return share <= 16 and (share >= 4 or config["num_warps"] == 1)

        def shared(config: Config) -> bool:
            held = 2 * config["num_stages"] * config["rows_per_step"] * block * problem.torch_dtype.itemsize
            return config["num_stages"] == 1 or fits_shared(held * config["programs_per_sm"], device)

        return (
            Space(
                rows_per_step=[count for count in (1, 4, 16) if count <= most],
                num_warps=warps,
                programs_per_sm=[1, 2, 4, 8],
                num_stages=[1, 2],
            )
            .require("4 to 16 elements a thread", balanced)
            .require("the SM has the threads", lambda c: c["programs_per_sm"] * c["num_warps"] <= _WARPS_PER_SM)
            .require("the stages fit in shared memory", shared)
        )

    def default(self, problem: Problem, device: Device) -> Config:
        """About 8 elements a thread and 16 warps an SM, which their registers leave room for."""
        block = next_power_of_2(problem.cols)

        def distance(config: Config) -> tuple[float, ...]:
            step = config["rows_per_step"] * block
            share = elements_per_thread(step, config["num_warps"], device)
            warps = config["programs_per_sm"] * config["num_warps"]
            return abs(step - 1024), abs(share - 8), abs(warps - _DEFAULT_WARPS_PER_SM), config["num_stages"]

        return min(self.space(problem, device).configs, key=distance)

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        return {"partial": TensorSpec.contiguous((_programs(problem, config, device), problem.cols), torch.float32)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        multiple, count = row_multiple(problem.cols), _programs(problem, config, device)
        constants: dict[str, Any] = {
            "MULTIPLE": multiple,
            "ROWS": config["rows_per_step"],
            "BLOCK": next_power_of_2(problem.cols),
            "STAGES": config["num_stages"],
        }
        operands = ("grad_x", "partial", "grad_y", "x", "weight", "eps", problem.rows, problem.cols // multiple)
        first = Launch(kernels.row_rms_norm_backward, (count,), operands, constants, options(config))
        return [first, _sum_launch(problem, count)]


def _programs(problem: Problem, config: Config, device: Device) -> int:
    """As many as stay on the device, no more than there are steps, and one where there are no rows: it writes zeros."""
    steps: int = -(-problem.rows // config["rows_per_step"])
    most: int = config["programs_per_sm"] * max(device.multiprocessors, 1)
    return max(min(most, steps), 1)


class ColumnsRmsNormBackward(TritonImplementation):
    """A first pass over rows for what is common to a row, a second by columns; for rows too long for registers."""

    op = "rms_norm_backward"
    name = "triton.columns"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from common_reasons(problem, device)
        yield from rows.pass_reasons(problem)

    def preference(self, problem: Problem, device: Device) -> float:
        """Reads everything twice."""
        return 1.0

    def space(self, problem: Problem, device: Device) -> Space:
        """Columns a step of the first pass and of the second, warps, and programs of the second an SM."""
        vector = rows.vector_of(problem)

        def vectors(config: Config) -> bool:
            return bool(vector <= elements_per_thread(config["BLOCK"], config["num_warps"], device) <= 2 * vector)

        return Space(
            BLOCK=[1024, 2048, 4096, 8192], num_warps=[4, 8, 16], COLS=[128, 256, 512], programs_per_sm=[2, 4]
        ).require("one or two 16-byte vectors a thread", vectors)

    def default(self, problem: Problem, device: Device) -> Config:
        """8 warps and a vector a thread."""
        block = 8 * 32 * rows.vector_of(problem)

        def distance(config: Config) -> tuple[int, ...]:
            return abs(config["num_warps"] - 8), abs(config["BLOCK"] - block), abs(config["COLS"] - 256)

        return min(self.space(problem, device).configs, key=distance)

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        _, spans = _spans(problem, config, device)
        return {
            "inverses": TensorSpec.contiguous((problem.rows,), torch.float32),
            "means": TensorSpec.contiguous((problem.rows,), torch.float32),
            "partial": TensorSpec.contiguous((spans, problem.cols), torch.float32),
        }

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        multiple, vector = row_multiple(problem.cols), rows.vector_of(problem)
        units, (span, spans) = problem.cols // multiple, _spans(problem, config, device)
        lanes = {"LANES": config["BLOCK"] // vector, "VECTOR": vector, "STAGES": 1}
        tile = {"ROWS": config["num_warps"], "COLS": config["COLS"]}
        common = ("grad_y", "x", "weight")
        return [
            Launch(
                kernels.rms_norm_backward_means,
                grid=(problem.rows,),
                args=("inverses", "means", *common, "eps", units),
                constants={"MULTIPLE": multiple, **lanes},
                options=options(config),
            ),
            Launch(
                kernels.rms_norm_backward_columns,
                grid=(-(-problem.cols // config["COLS"]) * spans,),
                args=("grad_x", "partial", "inverses", "means", *common, problem.rows, span, units),
                constants={"MULTIPLE": multiple, **tile},
                options=options(config),
            ),
            _sum_launch(problem, spans),
        ]


def _spans(problem: Problem, config: Config, device: Device) -> tuple[int, int]:
    """Rows of each program of the second pass, whole steps of as many as warps, and how many such spans there are."""
    blocks = -(-problem.cols // config["COLS"])
    most: int = max(1, config["programs_per_sm"] * max(device.multiprocessors, 1) // blocks)
    steps: int = -(-problem.rows // config["num_warps"])
    if steps <= most:
        return config["num_warps"], max(steps, 1)
    return -(-steps // most) * config["num_warps"], most
