"""cross_entropy in three forms: rows in registers, rows read in steps, rows split over programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from registry import Config, Device, Launch, Problem, TensorSpec
from registry.backends.estimate import next_power_of_2, row_multiple

from .. import rows
from ..softmax import SplitSoftmax
from ..support import options
from .kernels import cross_entropy as kernels

_SUM_BLOCK, _SUM_WARPS = 2048, 8
_OPERANDS = ("logits", "target", "weight", "ignore_index", "label_smoothing")


def _losses(problem: Problem) -> str:
    """The tensor of the rows' losses: the result, or scratch if they are reduced."""
    return "loss" if problem.reduction == "none" else "losses"


def _losses_spec(problem: Problem) -> dict[str, TensorSpec]:
    if problem.reduction == "none":
        return {}
    return {"losses": TensorSpec.contiguous((problem.rows,), torch.float32)}


def _units(problem: Problem) -> tuple[int, int]:
    """The columns as a number of units, and the size of a unit."""
    multiple = row_multiple(problem.cols)
    return problem.cols // multiple, multiple


def _sum_launches(problem: Problem) -> list[Launch]:
    """The last launch, if the losses are reduced."""
    if problem.reduction == "none":
        return []
    units, multiple = _units(problem)
    return [
        Launch(
            kernels.sum_losses,
            grid=(1,),
            args=("loss", "losses", "target", "weight", "ignore_index", problem.rows, units),
            constants={"MULTIPLE": multiple, "MEAN": problem.reduction == "mean", "BLOCK": _SUM_BLOCK},
            options={"num_warps": _SUM_WARPS},
        )
    ]


class RowCrossEntropy(rows.RegisterRows):
    """One or several whole rows a program, read once and kept in registers; for short rows."""

    op = "cross_entropy"
    name = "triton.row"
    kernel = kernels.row_cross_entropy
    operands = _OPERANDS

    def preference(self, problem: Problem, device: Device) -> float:
        """First for rows of at most 8192 columns; for longer ones the online form, which reads a row once, too."""
        return 2.0 if problem.cols <= 8192 else 1.0

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        return _losses_spec(problem)

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:  # type: ignore[override]
        (units, multiple), count = _units(problem), config["rows_per_program"]
        first = Launch(
            self.kernel,
            grid=(-(-problem.rows // count),),
            args=(_losses(problem), "lse", *self.operands, problem.rows, units),
            constants={"MULTIPLE": multiple, "ROWS": count, "BLOCK": next_power_of_2(problem.cols)},
            options=options(config),
        )
        return [first, *_sum_launches(problem)]


class OnlineCrossEntropy(rows.PassRows):
    """One row a program, BLOCK columns a step, read once with an online maximum and sum.

    With label smoothing a loop, and one without: steps that are loaded ahead have shared memory in both.
    """

    op = "cross_entropy"
    name = "triton.online"
    kernel = kernels.online_cross_entropy
    operands = _OPERANDS
    tensors = 2

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        return _losses_spec(problem)

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:  # type: ignore[override]
        units, multiple = _units(problem)
        first = Launch(
            self.kernel,
            grid=(problem.rows,),
            args=(_losses(problem), "lse", *self.operands, units),
            constants={"MULTIPLE": multiple, **rows.pass_constants(problem, config)},
            options=options(config),
        )
        return [first, *_sum_launches(problem)]


class SplitCrossEntropy(SplitSoftmax):
    """Each row over several programs, and a second launch that combines their fp32 partial results."""

    op = "cross_entropy"

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        parts = TensorSpec.contiguous((4, problem.rows, config["SPLITS"]), torch.float32)
        return {"parts": parts, **_losses_spec(problem)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        (units, multiple), splits = _units(problem), config["SPLITS"]
        constants = {"MULTIPLE": multiple, "SPLITS": splits}
        return [
            Launch(
                kernels.partial_cross_entropy,
                grid=(problem.rows * splits,),
                args=("parts", *_OPERANDS, units),
                constants={**constants, **rows.pass_constants(problem, config)},
                options=options(config),
            ),
            Launch(
                kernels.combine_cross_entropy,
                grid=(problem.rows,),
                args=(_losses(problem), "lse", "parts", *_OPERANDS, units),
                constants=constants,
                options={"num_warps": 1},
            ),
            *_sum_launches(problem),
        ]
