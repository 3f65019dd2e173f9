"""cross_entropy of logits and classes: torch.nn.functional.cross_entropy's semantics for rows of logits.

It takes float32, float16, bfloat16 and float64, and classes as int64. Beside the loss it returns the log-sum-exp of
each row, which its gradient needs: autograd then keeps one number for each row, where torch keeps a log-softmax as
large as the logits.

A target that is neither ``ignore_index`` nor in the vocabulary is not seen by the host, which would have to wait for
the device: torch's CUDA kernel ends the process's use of the GPU with an assertion. Here such a row has the loss NaN
and a gradient of NaN, so that it is noticed, and nothing outside of the tensors is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from ...contract import Backward, Floor, Op, RowMajor, Tolerance
from ...problem import Problem
from ..forms import cross_entropy_forms
from ..rounding import FLOAT32_UNIT, fp32_weight, underflow, unit_roundoff, units
from .targets import (
    KINDS,
    REDUCTIONS,
    Targets,
    accumulator,
    check_loss,
    check_smoothing,
    check_target_data,
    drawn,
    loss_examples,
    loss_problem,
)


def cross_entropy_reference(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of ``logits`` [rows, cols] at ``target`` [rows], int64, and ``lse`` [rows], the log-sum-exp of each row.

    With ``w`` the class weights (1 without a ``weight`` [cols]) and ``s`` the smoothing, a row's loss is
    ``(1 - s) * w[t] * (lse - x[t]) + s / cols * sum(w * (lse - x))``. ``reduction``: "none" returns them [rows], "sum"
    their sum, "mean" that divided by the sum of ``w[t]`` over rows that count, whose target is a class that is not
    ignored; of no rows it is NaN, as in torch.

    A row whose target is ``ignore_index`` has the loss 0 and the lse 0, whatever its logits are, which are not read.
    The loss of a row is NaN if its target is outside of the vocabulary; if a logit is NaN or inf, or all are -inf, its
    lse is, too. The loss has the dtype of the logits, as in torch; it is computed in fp32, or wider, and rounded once.
    lse is float32, of float64 logits float64.
    """
    check_smoothing("cross_entropy", label_smoothing)
    targets = Targets.of(logits, target, weight, ignore_index)
    # before anything else, so that their gradient is 0, too
    wide = logits.to(accumulator(logits)).masked_fill(~targets.kept[:, None], 0.0)
    most = wide.detach().amax(-1)
    lse = most + (wide - most[:, None]).exp().sum(-1).log()
    losses = targets.gain * (lse - wide.gather(-1, targets.place[:, None])[:, 0])
    if label_smoothing:
        surprise = lse[:, None] - wide
        even = surprise.mean(-1) if weight is None else (surprise * weight.to(wide.dtype)).mean(-1)
        losses = (1.0 - label_smoothing) * losses + label_smoothing * even
    losses = losses.masked_fill(~targets.kept, 0.0).masked_fill(targets.kept & ~targets.inside, math.nan)
    if reduction == "mean":
        losses = losses.sum() / targets.gain.sum()
    elif reduction == "sum":
        losses = losses.sum()
    return losses.to(logits.dtype), lse.masked_fill(~targets.kept, 0.0)


def _outputs(logits: Any, _target: Any, _weight: Any, _index: int, reduction: str, _: float) -> list[Any]:
    rows = (logits.shape[0],)
    return [(rows if reduction == "none" else (), logits.dtype), (rows, accumulator(logits))]


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    logits, target, weight, ignore_index, smoothing = drawn(problem, kind, generator)
    return logits, target, weight, ignore_index, problem.reduction, smoothing


def roundings_of_sum(problem: Problem) -> float:
    """Roundings of a row's logarithm: those of its exponentials, and of a serial sum of them.

    torch's log-softmax on a CPU errs by half of that (128256 columns of equal sign).
    """
    return 24.0 + math.sqrt(problem.cols)


def _lse_scale(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    """Relative to the output, and absolute: the relative error of a sum is the absolute one of its logarithm."""
    return reference.abs() + roundings_of_sum(problem)


def _scale(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    """Relative to each output and, in fp32's roundings, to what it is a difference of: the largest logit and the lse.

    With label smoothing also to the mean of the logits, whose terms are as large as their largest.
    """
    logits, smoothing = values["logits"], values["label_smoothing"]
    targets = Targets.of(logits, values["target"], values["weight"], values["ignore_index"])
    largest = logits.amax(-1).double().nan_to_num(0.0, 0.0, 0.0).abs()
    error = 2.0 * largest + roundings_of_sum(problem)
    if smoothing:
        mean = logits.mean(-1).double().nan_to_num(0.0, 0.0, 0.0).abs()
        error = error + smoothing * (2.0 * mean + largest / math.sqrt(problem.cols)) * math.sqrt(problem.cols)
    # a class may weigh less than others, but the smoothed part of its loss has them all
    error = error * torch.where(targets.kept, targets.gain.double().abs() + (2.0 * smoothing), 0.0)
    size = reference.abs()
    if problem.reduction != "none":
        error = error.sum() + size * math.sqrt(problem.rows)
        if problem.reduction == "mean":
            error = error / targets.gain.double().sum().abs().clamp_min(1e-3)
    allowed: torch.Tensor = size + fp32_weight(problem) * error
    return allowed


def _floor(problem: Problem) -> Floor:
    size = problem.torch_dtype.itemsize
    losses = problem.rows if problem.reduction == "none" else 1
    weights = problem.cols if problem.weight else 0
    moved = (problem.rows * problem.cols + weights + losses) * size + problem.rows * (8 + max(4, size))
    return Floor(bytes=moved, flop=5 * problem.rows * problem.cols)


CROSS_ENTROPY = Op(
    name="cross_entropy",
    schema=(
        "cross_entropy(Tensor logits, Tensor target, Tensor? weight=None, int ignore_index=-100,"
        ' str reduction="mean", float label_smoothing=0.0) -> (Tensor loss, Tensor lse)'
    ),
    version=1,
    reference=cross_entropy_reference,
    fake=RowMajor(_outputs),
    problem=loss_problem,
    inputs=_inputs,
    floor=_floor,
    tolerance=Tolerance(units(float32=2.0, half=1.1), underflow(4), _scale),
    tolerances={
        "lse": Tolerance(
            {"float32": 2 * FLOAT32_UNIT, "float64": 2 * unit_roundoff(torch.float64)}, underflow(), _lse_scale
        )
    },
    static=frozenset({"cols", "dtype"}),
    dynamic=frozenset({"rows"}),
    choices={"reduction": REDUCTIONS, "weight": (False, True)},
    kinds=KINDS,
    examples=loss_examples(),
    check=check_loss,
    check_data=partial(check_target_data, "cross_entropy"),
    independent=frozenset({"target"}),
    numbers=frozenset({"label_smoothing", "ignore_index"}),
    forms=cross_entropy_forms,
    backward=Backward(op="cross_entropy_backward", saved=("logits", "target", "weight", "lse")),
)
