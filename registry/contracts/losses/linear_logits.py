"""Logits of a linear layer for a loss: checks of its tensors, dimensions, random ones, and their errors by rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ...errors import InvalidArgumentError
from ...problem import Arguments, Problem, TensorSpec, Value, check_choice, dtype_name
from .. import fills
from ..checks import FLOATS, float_dtype, float_tensor, positive, same_dtype, shape_text
from ..rounding import fp32_weight
from .targets import REDUCTIONS, accumulator, aim_outside, check_smoothing, check_target, ignore_some

_SHAPES = ((1, 1, 1), (3, 7, 5), (5, 128, 64), (2, 1000, 33), (33, 1025, 16), (6, 4099, 24))
_SPIKE, _LEADING = 20.0, 8.0
_ELEMENTS = 2**26
"""Logits that are computed at a time: 512 MiB in float64."""


def row_spans(rows: int, cols: int) -> Iterator[slice]:
    """Rows in spans of at most ``_ELEMENTS`` logits, at least one span: no more logits are held at once."""
    step = max(1, _ELEMENTS // cols)
    for start in range(0, max(rows, 1), step):
        yield slice(start, start + step)


def linear_loss_problem(arguments: Arguments) -> Mapping[str, Value]:
    """Dimensions of ``x``, ``weight``, ``target``, ``bias`` and ``reduction``, forward and backward."""
    op = arguments.op
    check_choice(op, "reduction", arguments.text("reduction"), REDUCTIONS)
    check_smoothing(op, arguments.number("label_smoothing"))
    x, weight = float_tensor(arguments, "x"), float_tensor(arguments, "weight")
    if len(x.shape) != 2 or not x.shape[1]:
        raise InvalidArgumentError(
            f"{op}: x has shape {shape_text(x.shape)}, expected [rows, k] with k of at least 1",
            hint="of [batch, seq, k] make rows: x.flatten(0, -2), target.flatten()",
        )
    _check_weight(op, x, weight)
    if arguments["bias"] is not None:
        _check_bias(op, weight, float_tensor(arguments, "bias"))
    check_target(op, ("x", x), arguments.tensor("target"))
    return {
        "rows": x.shape[0],
        "cols": weight.shape[0],
        "k": x.shape[1],
        "reduction": arguments.text("reduction"),
        "bias": arguments["bias"] is not None,
        "dtype": dtype_name(x.dtype),
    }


def _check_weight(op: str, x: TensorSpec, weight: TensorSpec) -> None:
    if len(weight.shape) != 2 or weight.shape[1] != x.shape[1] or not weight.shape[0]:
        fits = len(weight.shape) == 2 and weight.shape[0] == x.shape[1]
        raise InvalidArgumentError(
            f"{op}: weight has shape {shape_text(weight.shape)}, expected [cols, {x.shape[1]}] with at least one column"
            f" (x has shape {shape_text(x.shape)})",
            hint="weight.t(): it is the transposed one" if fits else "the weight of the lm_head, [vocabulary, k]",
        )
    same_dtype(op, ("x", x), ("weight", weight))


def _check_bias(op: str, weight: TensorSpec, bias: TensorSpec) -> None:
    if bias.shape != weight.shape[:1]:
        raise InvalidArgumentError(
            f"{op}: bias has shape {shape_text(bias.shape)} but weight has {weight.shape[0]} rows"
            f" (shape {shape_text(weight.shape)})",
            hint=f"expected one number for each column of the logits, of shape {weight.shape[0]}, or None",
        )
    same_dtype(op, ("weight", weight), ("bias", bias))


def check_linear_loss(problem: Problem) -> None:
    """Raise InvalidArgumentError for dimensions that no call has."""
    positive(problem, "rows", "cols", "k")
    float_dtype(problem)


def drawn_linear(
    problem: Problem, kind: str, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, int, float]:
    """x, weight, target, bias, ignore_index and label_smoothing of every kind.

    Where a kind sets single logits, the last feature of x is ``_LEADING`` and the last column of the weight makes them.
    """
    rows, cols, k, dtype = problem.rows, problem.cols, problem.k, problem.torch_dtype
    device = generator.device
    target = torch.randint(cols, (rows,), device=device, generator=generator)
    x = fills.normal((rows, k), dtype, generator)
    weight = fills.normal((cols, k), dtype, generator).mul_(k**-0.5)
    bias = fills.normal((cols,), dtype, generator) if problem.bias else None
    ignore_index, smoothing = -100, 0.0
    if kind == "outliers":
        # a few logits near 100, whose exponentials overflow fp32
        fills.plant_outliers(x, 40.0 * math.sqrt(k), generator)
    elif kind == "spike_last":
        # the last column has nearly all of the probability, by the last feature, and is the target of every other row
        x[:, -1:] = _LEADING
        weight[-1:, -1:] = _SPIKE / _LEADING
        target[::2] = cols - 1
    elif kind == "constant":
        # logits near -120: exp(-120) is 0 in fp32, and the logarithm of such a sum infinite. They are integers, since
        # all rows are alike, and their roundings would add up
        x.zero_()[:, -1:] = _LEADING
        weight[:, -1:] = -120.0 / _LEADING
        if bias is not None:
            bias.round_()
    elif kind == "masked":
        # a third of the vocabulary has no probability: by a bias of -inf, or by logits of about -20000
        x[:, -1:] = _LEADING
        weight[: cols // 3, -1:] = -20_000.0 / _LEADING
        if bias is not None:
            bias[: cols // 3] = -torch.inf
        target.fill_(cols - 1)
    elif kind == "ignored":
        ignore_index = ignore_some(cols, x, target)
    elif kind == "smoothed":
        smoothing = 0.3
        # a mean of the logits far from 0, in which the last column counts as much as many others
        x[:, -1:] = _LEADING
        weight[:, -1:] = 2.0 / _LEADING
        weight[-1:, -1:] = -min(64.0 * cols, 60_000.0) / _LEADING
        target[rows // 2 :: 3] = ignore_index
    elif kind == "outside":
        aim_outside(target, cols)
    return x, weight, target, bias, ignore_index, smoothing


def linear_log_sum_exp(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The log-sum-exp [rows] of the logits, in fp32 or wider."""
    wide = accumulator(x)
    if x.is_meta:
        return x.new_empty(x.shape[:1], dtype=wide)  # there may be so many rows that spans of them never end
    offset = None if bias is None else bias.to(wide)
    turned = weight.to(wide)
    parts = [
        torch.nn.functional.linear(x[rows].to(wide), turned, offset).logsumexp(-1)
        for rows in row_spans(x.shape[0], weight.shape[0])
    ]
    return torch.cat(parts)


def logit_errors(problem: Problem, values: Mapping[str, Any]) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
    """Rows, their logits in fp32 or wider, and in the problem's roundings what each logit may err by.

    An implementation may round logits to the dtype. Beside that an error is relative to the terms of a logit's sum,
    which may cancel: to the root of their squares' sum. cuBLAS may add the parts of a split sum in half precision.
    Where a logit is not finite, it and its error are 0 here.
    """
    x, weight, bias = values["x"], values["weight"], values["bias"]
    wide = accumulator(x)
    turned, square = weight.to(wide).t(), weight.to(wide).square().t()
    of_sum = fp32_weight(problem) * (8.0 + math.sqrt(problem.k))
    for rows in row_spans(problem.rows, problem.cols):
        given = x[rows].to(wide)
        logits, terms = given @ turned, given.square() @ square
        if bias is not None:
            logits += bias
            terms += bias.to(wide).square()
        spread = terms.sqrt_()
        error = logits.abs() + 2.0 * spread + (logits.abs() + spread) * of_sum
        sound = logits.isfinite() & error.isfinite()
        yield rows, logits.masked_fill_(~sound, 0.0), error.masked_fill_(~sound, 0.0)


def linear_loss_examples() -> tuple[Mapping[str, Value], ...]:
    """Small problems with every reduction, with and without a bias; one in float64."""
    pairs = [(torch.float64, (3, 130, 17)), *((dtype, shape) for dtype in FLOATS for shape in _SHAPES)]
    return tuple(
        {
            "rows": rows,
            "cols": cols,
            "k": k,
            "reduction": REDUCTIONS[(place + place // len(_SHAPES)) % 3],
            "bias": place % 4 == 1,
            "dtype": dtype_name(dtype),
        }
        for place, (dtype, (rows, cols, k)) in enumerate(pairs)
    )
