"""fused_linear_cross_entropy: the cross-entropy of a linear layer's logits, which are never held all at once.

``logits = x @ weight.T + bias`` of the last layer of a language model, its lm_head, and the loss of ``cross_entropy``.
Of 8192 tokens and 128256 classes the logits alone would take 2 GiB in bfloat16, and their gradient as much.

Logits are summed in fp32. The reference keeps them so; an implementation may round them to the dtype, as a linear layer
does that writes them. The tolerance allows for that rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from ...contract import Backward, Floor, Op, RowMajor, Tolerance
from ...problem import Problem
from .. import fills
from ..rounding import FLOAT32_UNIT, fp32_weight, underflow, unit_roundoff, units
from .cross_entropy import cross_entropy_reference, roundings_of_sum
from .linear_logits import (
    check_linear_loss,
    drawn_linear,
    linear_loss_examples,
    linear_loss_problem,
    logit_errors,
    row_spans,
)
from .targets import KINDS, REDUCTIONS, Targets, accumulator, check_smoothing, check_target_data


def fused_linear_cross_entropy_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``cross_entropy`` of ``x @ weight.T + bias``: x [rows, k], weight [cols, k], target [rows] int64, bias [cols].

    Returns the loss, in x's dtype, and ``lse`` [rows], the log-sum-exp of each row in float32 (of float64, float64).
    Ignored rows, targets outside of the vocabulary, reduction and label smoothing are as in ``cross_entropy``; the x of
    an ignored row is not read.
    """
    check_smoothing("fused_linear_cross_entropy", label_smoothing)
    wide = accumulator(x)
    targets = Targets.among(weight.shape[0], target, ignore_index, wide)
    # before anything else, so that an ignored row has no part in a gradient
    kept_x = x.to(wide).masked_fill(~targets.kept[:, None], 0.0)
    turned, offset = weight.to(wide), None if bias is None else bias.to(wide)
    parts = []
    for rows in row_spans(x.shape[0], weight.shape[0]):
        logits = torch.nn.functional.linear(kept_x[rows], turned, offset)
        parts.append(cross_entropy_reference(logits, target[rows], None, ignore_index, "none", label_smoothing))
    losses, lse = (torch.cat(each) for each in zip(*parts, strict=True))
    if reduction == "mean":
        losses = losses.sum() / targets.gain.sum()
    elif reduction == "sum":
        losses = losses.sum()
    return losses.to(x.dtype), lse


def _outputs(x: Any, _weight: Any, _target: Any, _bias: Any, _index: int, reduction: str, _: float) -> list[Any]:
    rows = (x.shape[0],)
    return [(rows if reduction == "none" else (), x.dtype), (rows, accumulator(x))]


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    x, weight, target, bias, ignore_index, smoothing = drawn_linear(problem, kind, generator)
    if kind == "masked" and problem.reduction == "none":
        # a NaN and an infinity make their row's loss NaN, which would make a mean or a sum NaN
        fills.plant_in_rows(x, (torch.nan, torch.inf), generator)
    return x, weight, target, bias, ignore_index, problem.reduction, smoothing


def row_errors(problem: Problem, values: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """What the lse and the loss of each row may err by, float64 [rows], in roundings of the problem's dtype.

    The logits' roundings are independent, so that those of a mean with weights ``p`` err by four times the root of
    their squares' sum, and never by more than their mean.
    """
    wide = accumulator(values["x"])
    targets = Targets.among(problem.cols, values["target"], values["ignore_index"], wide)
    smoothing, lses, losses = values["label_smoothing"], [], []
    for rows, logits, error in logit_errors(problem, values):
        p = logits.softmax(-1)
        of_lse = torch.minimum((p * error).sum(-1), 4.0 * (p * error).square().sum(-1).sqrt())
        of_lse = of_lse + fp32_weight(problem) * roundings_of_sum(problem)
        of_mean = torch.minimum(error.mean(-1), 4.0 * error.square().sum(-1).sqrt() / problem.cols)
        of_target = error.gather(-1, targets.place[rows, None])[:, 0]
        largest = logits.abs().amax(-1)
        loss = of_lse + (1.0 - smoothing) * of_target + smoothing * of_mean + 2.0 * fp32_weight(problem) * largest
        lses.append(of_lse)
        losses.append(loss)
    return torch.cat(lses).double(), torch.cat(losses).double().masked_fill(~targets.kept, 0.0)


def _lse_scale(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    """Scale in float32's roundings, since lse is float32 beside halves whose logits are rounded."""
    error, _ = row_errors(problem, values)
    allowed: torch.Tensor = reference.abs() + error / fp32_weight(problem)
    return allowed


def _scale(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    """Relative to each output, and to the errors of the logits that it is made of."""
    _, error = row_errors(problem, values)
    size = reference.abs()
    if problem.reduction != "none":
        error = error.sum() + fp32_weight(problem) * size * math.sqrt(problem.rows)
        if problem.reduction == "mean":
            counted = Targets.among(problem.cols, values["target"], values["ignore_index"], torch.float64)
            error = error / counted.gain.sum().clamp_min(1.0)
    allowed: torch.Tensor = size + error
    return allowed


def _floor(problem: Problem) -> Floor:
    rows, cols, k = problem.rows, problem.cols, problem.k
    size = problem.torch_dtype.itemsize
    losses = rows if problem.reduction == "none" else 1
    moved = (rows * k + cols * k + (cols if problem.bias else 0) + losses) * size + rows * (8 + max(4, size))
    return Floor(bytes=moved, flop=2 * rows * cols * k + 5 * rows * cols)


FUSED_LINEAR_CROSS_ENTROPY = Op(
    name="fused_linear_cross_entropy",
    schema=(
        "fused_linear_cross_entropy(Tensor x, Tensor weight, Tensor target, Tensor? bias=None, int ignore_index=-100,"
        ' str reduction="mean", float label_smoothing=0.0) -> (Tensor loss, Tensor lse)'
    ),
    version=1,
    reference=fused_linear_cross_entropy_reference,
    fake=RowMajor(_outputs),
    problem=linear_loss_problem,
    inputs=_inputs,
    floor=_floor,
    tolerance=Tolerance(units(float32=2.0, half=1.5), underflow(4), _scale),
    tolerances={
        "lse": Tolerance(
            {"float32": 2 * FLOAT32_UNIT, "float64": 2 * unit_roundoff(torch.float64)}, underflow(), _lse_scale
        )
    },
    static=frozenset({"cols", "k", "dtype"}),
    dynamic=frozenset({"rows"}),
    choices={"reduction": REDUCTIONS, "bias": (False, True)},
    kinds=KINDS,
    examples=linear_loss_examples(),
    check=check_linear_loss,
    check_data=partial(check_target_data, "fused_linear_cross_entropy"),
    independent=frozenset({"target"}),
    numbers=frozenset({"label_smoothing", "ignore_index"}),
    backward=Backward(op="fused_linear_cross_entropy_backward", saved=("x", "weight", "target", "bias", "lse")),
    weights=frozenset({"weight", "bias"}),
)
