"""The gradient of cross_entropy by its logits, from the log-sum-exp of each row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from ...contract import Floor, Op, RowMajor, Tolerance
from ...errors import InvalidArgumentError
from ...problem import Arguments, Problem, Value, dtype_name
from .. import fills
from ..checks import same_dtype, shape_text
from ..rounding import fp32_weight, underflow, units
from .cross_entropy import CROSS_ENTROPY
from .targets import (
    Targets,
    accumulator,
    check_loss,
    check_smoothing,
    check_target_data,
    drawn,
    loss_examples,
    loss_problem,
)


def cross_entropy_backward_reference(
    grad_loss: torch.Tensor,
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    lse: torch.Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """``grad_logits`` [rows, cols] of ``cross_entropy``, from its ``lse`` [rows], float32 (of float64 logits float64).

    With ``p = exp(x - lse)``, ``w`` the class weights and ``s`` the smoothing, a row's gradient is
    ``g * ((1 - s) * w[t] * (p - [column t]) + s / cols * (p * sum(w) - w))``; ``g`` is ``grad_loss``, for "mean"
    divided by the sum of ``w[t]`` over rows that count. ``grad_loss`` has the shape and dtype of the loss.

    The gradient of an ignored row is 0, whatever its logits are; that of a row whose target is outside of the
    vocabulary is NaN. Halves are computed in fp32, and rounded once.
    """
    check_smoothing("cross_entropy_backward", label_smoothing)
    targets = Targets.of(logits, target, weight, ignore_index)
    slope = row_factors(grad_loss, targets, reduction)
    wide, cols = logits.to(accumulator(logits)), logits.shape[-1]
    of_target = (1.0 - label_smoothing) * targets.gain
    each = wide.new_ones(cols) if weight is None else weight.to(wide.dtype)
    of_all = of_target + label_smoothing / cols * each.sum()
    gradient = (wide - lse[:, None]).exp() * of_all[:, None] - label_smoothing / cols * each
    gradient = gradient.scatter_add(-1, targets.place[:, None], -of_target[:, None]) * slope[:, None]
    gradient = gradient.masked_fill(~targets.kept[:, None], 0.0)
    outside = targets.kept & ~targets.inside
    return gradient.masked_fill(outside[:, None], math.nan).to(logits.dtype).contiguous()


def row_factors(grad_loss: torch.Tensor, targets: Targets, reduction: str) -> torch.Tensor:
    """``g`` of each row [rows], in fp32 or wider: the gradient of the loss by the row's, before its target's weight."""
    factor = grad_loss.to(targets.gain.dtype)
    if reduction == "mean":
        factor = factor / targets.gain.sum()
    return factor.expand(targets.kept.shape)


def _problem(arguments: Arguments) -> Mapping[str, Value]:
    dims = loss_problem(arguments)
    check_saved(arguments, "logits", str(dims["reduction"]), "cross_entropy")
    return dims


def check_saved(arguments: Arguments, rows_of: str, reduction: str, forward: str) -> None:
    """Raise InvalidArgumentError unless ``grad_loss`` and ``lse`` fit the loss of the rows of tensor ``rows_of``.

    ``forward`` names the op whose outputs loss and lse are.
    """
    op = arguments.op
    gradient, given, lse = (arguments.tensor(name) for name in ("grad_loss", rows_of, "lse"))
    expected = given.shape[:1] if reduction == "none" else ()
    if gradient.shape != expected:
        raise InvalidArgumentError(
            f"{op}: grad_loss is {shape_text(gradient.shape)} but the loss is {shape_text(expected)}",
            hint=f'with reduction="{reduction}" the loss is ' + ("[rows]" if expected else "one number"),
        )
    same_dtype(op, (rows_of, given), ("grad_loss", gradient))
    wide = torch.promote_types(given.dtype, torch.float32)
    if lse.shape != given.shape[:1] or lse.dtype != wide:
        raise InvalidArgumentError(
            f"{op}: lse is {dtype_name(lse.dtype)} of shape {shape_text(lse.shape)},"
            f" expected {dtype_name(wide)} of shape {given.shape[0]}",
            hint=f"it is the second output of {forward}",
        )


def log_sum_exp(logits: torch.Tensor) -> torch.Tensor:
    """The log-sum-exp [rows] in fp32 or wider, with one copy of the logits."""
    wide = logits.to(accumulator(logits), copy=True)
    most = wide.amax(-1)
    return wide.sub_(most[:, None]).exp_().sum(-1).log().add_(most)


def drawn_gradient(problem: Problem, generator: torch.Generator) -> torch.Tensor:
    """A ``grad_loss``, apart from 0, and for a mean scaled as training in float16 does.

    The quotient by all rows would underflow otherwise.
    """
    shape = (problem.rows,) if problem.reduction == "none" else ()
    grad_loss = fills.normal(shape, problem.torch_dtype, generator).clamp_(-1.0, 1.0)
    return (grad_loss + 1.5) * (min(problem.rows, 4096) if problem.reduction == "mean" else 1.0)


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    logits, target, weight, ignore_index, smoothing = drawn(problem, kind, generator)
    grad_loss = drawn_gradient(problem, generator)
    lse = log_sum_exp(logits)
    return grad_loss, logits, target, weight, lse, ignore_index, problem.reduction, smoothing


def _scale(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    """Relative to each output and, in fp32's roundings, to the exponential and its exponent's error.

    A target's gradient, and all with label smoothing, are differences that may cancel.
    """
    targets = Targets.of(values["logits"], values["target"], values["weight"], values["ignore_index"])
    smoothing = values["label_smoothing"]
    factor = row_factors(values["grad_loss"], targets, problem.reduction).double().abs().nan_to_num(0.0, 0.0, 0.0)
    of_target = ((1.0 - smoothing) * factor * targets.gain.double().abs())[:, None]
    even = (2.0 * smoothing / problem.cols * factor)[:, None]
    size = reference.abs()
    # p times what multiplies it, at most
    share = size + even
    steepest = (of_target + even * problem.cols).clamp_min(1e-300)
    exponent = (share / steepest).clamp_(1e-38, 1.0).log_().abs_()
    error = share * (16.0 + 2.0 * exponent)
    error.scatter_add_(-1, targets.place[:, None], 16.0 * of_target)
    if problem.reduction == "mean":
        error *= 1.0 + math.sqrt(problem.rows) / 16.0
    allowed: torch.Tensor = size + fp32_weight(problem) * error
    return allowed


def _floor(problem: Problem) -> Floor:
    size, elements = problem.torch_dtype.itemsize, problem.rows * problem.cols
    losses = problem.rows if problem.reduction == "none" else 1
    weights = problem.cols if problem.weight else 0
    moved = (2 * elements + weights + losses) * size + problem.rows * (8 + max(4, size))
    return Floor(bytes=moved, flop=4 * elements)


CROSS_ENTROPY_BACKWARD = Op(
    name="cross_entropy_backward",
    schema=(
        "cross_entropy_backward(Tensor grad_loss, Tensor logits, Tensor target, Tensor? weight, Tensor lse,"
        ' int ignore_index=-100, str reduction="mean", float label_smoothing=0.0) -> Tensor grad_logits'
    ),
    version=1,
    reference=cross_entropy_backward_reference,
    fake=RowMajor(lambda _, logits, *__: [(logits.shape, logits.dtype)]),
    problem=_problem,
    inputs=_inputs,
    floor=_floor,
    tolerance=Tolerance(units(float32=2.0, half=1.1), underflow(128) | {"float16": underflow()["float16"]}, _scale),
    static=CROSS_ENTROPY.static,
    dynamic=CROSS_ENTROPY.dynamic,
    choices=CROSS_ENTROPY.choices,
    kinds=CROSS_ENTROPY.kinds,
    examples=loss_examples(),
    check=check_loss,
    check_data=partial(check_target_data, "cross_entropy_backward"),
    independent=frozenset({"target"}),
    numbers=frozenset({"label_smoothing", "ignore_index"}),
)
