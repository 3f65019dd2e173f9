"""The gradients of layer norm in two forms, with the steps and programs of RMS norm's gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from registry import Config, Device, Launch, Problem, TensorSpec
from registry.backends.estimate import next_power_of_2, row_multiple

from .. import rows
from ..rms_norm_backward import ColumnsRmsNormBackward, RowRmsNormBackward, _programs, _spans
from ..support import options
from .kernels import layer_norm_backward as kernels

_SUM_ROWS, _SUM_COLS = 64, 32
_PARTIALS = {"NEED_WEIGHT": "partial", "NEED_BIAS": "partial_bias"}


def _needs(problem: Problem) -> dict[str, bool]:
    """Which gradients are needed, as constants of the kernels; all that exist where only dimensions are known."""
    arguments = problem.traits.arguments
    x, weight, bias = (arguments is None or arguments.flag(name) for name in ("need_x", "need_weight", "need_bias"))
    return {"NEED_X": x, "NEED_WEIGHT": weight and bool(problem.weight), "NEED_BIAS": bias and bool(problem.bias)}


def _partials(needs: Mapping[str, bool]) -> tuple[str, str]:
    """Names of the tensors of partial sums; without one, the name of a tensor that the kernel does not touch."""
    return "partial" if needs["NEED_WEIGHT"] else "grad_weight", "partial_bias" if needs["NEED_BIAS"] else "grad_bias"


def _partial_specs(problem: Problem, count: int) -> dict[str, TensorSpec]:
    needs, spec = _needs(problem), TensorSpec.contiguous((count, problem.cols), torch.float32)
    return {partial: spec for need, partial in _PARTIALS.items() if needs[need]}


def _sum_launches(problem: Problem, count: int) -> list[Launch]:
    """The last launch, if any: the gradients of weight and bias from ``count`` rows of partial sums."""
    multiple, needs = row_multiple(problem.cols), _needs(problem)
    needed = {need: needs[need] for need in _PARTIALS}
    if not any(needed.values()):
        return []
    return [
        Launch(
            kernels.sum_partials,
            grid=(-(-problem.cols // _SUM_COLS),),
            args=("grad_weight", "grad_bias", *_partials(needs), count, problem.cols // multiple),
            constants={"MULTIPLE": multiple, "ROWS": _SUM_ROWS, "COLS": _SUM_COLS, **needed},
            options={"num_warps": 4},
        )
    ]


class RowLayerNormBackward(RowRmsNormBackward):
    """Whole rows in registers, read once, by resident programs that sum the learnt gradients up over their rows."""

    op = "layer_norm_backward"

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        return _partial_specs(problem, _programs(problem, config, device))

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        multiple, count, needs = row_multiple(problem.cols), _programs(problem, config, device), _needs(problem)
        constants: dict[str, Any] = {
            **needs,
            "MULTIPLE": multiple,
            "ROWS": config["rows_per_step"],
            "BLOCK": next_power_of_2(problem.cols),
            "STAGES": config["num_stages"],
        }
        sizes = (problem.rows, problem.cols // multiple)
        operands = ("grad_x", *_partials(needs), "grad_y", "x", "weight", "eps", *sizes)
        first = Launch(kernels.row_layer_norm_backward, (count,), operands, constants, options(config))
        return [first, *_sum_launches(problem, count)]


class ColumnsLayerNormBackward(ColumnsRmsNormBackward):
    """A first pass over rows for what is common to a row, a second by columns; for rows too long for registers."""

    op = "layer_norm_backward"

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        _, spans = _spans(problem, config, device)
        statistics = TensorSpec.contiguous((4, problem.rows), torch.float32)
        return {"statistics": statistics, **_partial_specs(problem, spans)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        multiple, vector = row_multiple(problem.cols), rows.vector_of(problem)
        units, (span, spans) = problem.cols // multiple, _spans(problem, config, device)
        lanes = {"LANES": config["BLOCK"] // vector, "VECTOR": vector, "STAGES": 1}
        tile = {"ROWS": config["num_warps"], "COLS": config["COLS"]}
        common, needs = ("statistics", "grad_y", "x", "weight"), _needs(problem)
        return [
            Launch(
                kernels.layer_norm_backward_rows,
                grid=(problem.rows,),
                args=(*common, "eps", problem.rows, units),
                constants={"MULTIPLE": multiple, **lanes, "NEED_X": needs["NEED_X"]},
                options=options(config),
            ),
            Launch(
                kernels.layer_norm_backward_columns,
                grid=(-(-problem.cols // config["COLS"]) * spans,),
                args=("grad_x", *_partials(needs), *common, problem.rows, span, units),
                constants={"MULTIPLE": multiple, **tile, **needs},
                options=options(config),
            ),
            *_sum_launches(problem, spans),
        ]
