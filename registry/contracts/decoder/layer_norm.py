"""layer_norm over the last dimension: torch.nn.functional.layer_norm's semantics for one normalised dimension.

It takes float32, float16, bfloat16 and float64, and a float32 weight and bias beside a half x; either may be missing.
Several normalised dimensions are one: ``registry.call`` takes weights of several dimensions, or ``normalized_shape``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ...contract import Backward, Tolerance
from ...errors import InvalidArgumentError
from ...problem import Arguments, Problem, TensorSpec, Value, dtype_name
from .. import fills
from ..checks import AS_FIRST, HALVES, check_eps, float_tensor, row_examples, same_dtype, shape_text
from ..families import rows_op
from ..forms import layer_norm_forms
from ..rounding import fp32_weight, underflow, units

KINDS = ("normal", "offset", "outliers", "spike_last", "constant", "near_zero")

_SHORT = 16
_OFFSETS = {"bfloat16": 128.0, "float16": 512.0}
"""Means of inputs with standard deviation 1: so large that their dtype has few levels left; 64 for other dtypes."""


def layer_norm_reference(
    x: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, eps: float = 1e-5
) -> torch.Tensor:
    """``(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`` (Ba et al., 2016); halves in fp32, rounded once.

    ``var`` divides by cols. The result has the dtype of x, as in torch, also for a half x with a float32 weight.
    """
    check_eps("layer_norm", eps)
    unit, _ = normalised(x, eps)
    if weight is not None:
        unit = unit * weight.to(unit.dtype)
    if bias is not None:
        unit = unit + bias.to(unit.dtype)
    return unit.to(x.dtype).contiguous()


def normalised(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows minus their mean, divided by their standard deviation; 1 / standard deviation), in fp32 or wider."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    centred = wide - wide.mean(-1, keepdim=True)
    inverse = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return centred * inverse, inverse


def layer_norm_problem(arguments: Arguments) -> Mapping[str, Value]:
    """Dimensions of ``x``, ``weight`` and ``bias``, forward and backward."""
    check_eps(arguments.op, arguments.number("eps"))
    x = float_tensor(arguments, "x")
    if not x.shape:
        raise InvalidArgumentError(f"{arguments.op}: x has no dimension to normalise", hint="expected [..., cols]")
    learnt = {name: arguments.tensor(name) for name in ("weight", "bias") if arguments[name] is not None}
    for name, spec in learnt.items():
        _check_learnt(arguments.op, x, name, spec)
    if len(learnt) == 2:
        same_dtype(arguments.op, *learnt.items())
    rows, cols = math.prod(x.shape[:-1]), x.shape[-1]
    given = {name: name in learnt for name in ("weight", "bias")}
    return {"rows": rows, "cols": cols, "dtype": dtype_name(x.dtype), **given}


def _check_learnt(op: str, x: TensorSpec, name: str, spec: TensorSpec) -> None:
    cols = x.shape[-1]
    if spec.shape != (cols,):
        raise InvalidArgumentError(
            f"{op}: {name} has shape {shape_text(spec.shape)} but x has {cols} columns (shape {shape_text(x.shape)})",
            hint=f"expected a {name} of shape {cols}; of several normalised dimensions make one: x.flatten(-2)",
        )
    if spec.dtype != torch.float32 or x.dtype not in HALVES:
        same_dtype(op, ("x", x), (name, spec))


def drawn(
    problem: Problem, kind: str, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, float]:
    """x, weight, bias and eps of every kind."""
    shape, dtype = (problem.rows, problem.cols), problem.torch_dtype
    weight = fills.normal(shape[1:], dtype, generator).mul_(0.25).add_(1.0) if problem.weight else None
    bias = fills.normal(shape[1:], dtype, generator) if problem.bias else None
    eps = 1e-5
    x = fills.normal(shape, dtype, generator)
    if problem.cols < _SHORT:
        # apart, or a row's standard deviation would be as small as chance has it
        x[:, ::2] += 4.0
    if problem.cols == 1:
        # nothing but its own mean, of which nothing large shows more
        return x, weight, bias, eps
    if kind == "offset":
        # the difference of two means of squares has no digits left
        x += offset(problem)
    elif kind == "outliers":
        # 300 * 300 overflows a float16 accumulator
        fills.plant_outliers(x, 300.0, generator)
    elif kind == "spike_last":
        # 64 times as large as all the other columns together
        x[:, -1:] = 8.0 * math.sqrt(problem.cols)
    elif kind == "constant":
        # every second row: its variance is 0, and a difference of mean squares may be negative under the root
        x[::2] = 0.25
    elif kind == "near_zero":
        # the variance is about 1e-6, so that eps decides; and not the default eps
        x.mul_(2.0**-10)
        eps = 1e-6
    return x, weight, bias, eps


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    x, *others = drawn(problem, kind, generator)
    if kind == "near_zero":
        # makes its whole row NaN
        fills.plant_in_rows(x, (torch.nan,), generator)
    return x, *others


def offset(problem: Problem) -> float:
    """The mean of inputs of kind ``offset``, in standard deviations: the factor by which its rounding error grows."""
    return _OFFSETS.get(problem.dtype, 64.0)


def _scale(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    """Relative to each output; plus the roundings of two sums, relative to its row's root mean square, and the mean's.

    torch's CPU kernel multiplies a row and its mean before it subtracts them, by up to 316 where one column is all.
    """
    rms = reference.square().mean(-1, keepdim=True).sqrt_()
    size = reference.abs()
    means = 4 * offset(problem) + 4096 / problem.cols**2
    beside: torch.Tensor = fp32_weight(problem) * ((size + rms) * (8 + math.sqrt(problem.cols)) + means)
    return size + beside


def examples() -> tuple[Mapping[str, Value], ...]:
    """Small problems with the dimensions rows and cols, with and without a weight and a bias."""
    given = ((True, True), (True, False), (False, False), (False, True))
    return tuple(
        {**dims, "weight": given[place % 4][0], "bias": given[place % 4][1]}
        for place, dims in enumerate(row_examples())
    )


LAYER_NORM = rows_op(
    "layer_norm(Tensor x, Tensor? weight=None, Tensor? bias=None, float eps=1e-5) -> Tensor y",
    layer_norm_reference,
    flop=7,
    fake=AS_FIRST,
    problem=layer_norm_problem,
    inputs=_inputs,
    examples=examples(),
    tolerance=Tolerance(rtol=units(float32=2.0, half=1.1), atol=underflow(4), scale=_scale),
    kinds=KINDS,
    numbers=frozenset({"eps"}),
    alike={"weight": "x", "bias": "x"},
    forms=layer_norm_forms,
    backward=Backward(op="layer_norm_backward", saved=("x", "weight", "bias")),
    weights=frozenset({"weight", "bias"}),
)
