"""fused_add_rms_norm: adds to the residual stream of a decoder, and writes its norm, the next layer's input.

Like vLLM's it returns nothing and writes to two arguments. It is for inference and has no gradient: training adds and
calls ``rms_norm``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ...contract import Tolerance
from ...errors import InvalidArgumentError
from ...problem import Arguments, Problem, TensorSpec, Value, dtype_name
from .. import fills
from ..checks import HALVES, check_eps, check_writable, float_tensor, same_dtype, shape_text
from ..families import rows_op
from ..norm import rms_norm_scale
from ..rounding import underflow, units

KINDS = ("normal", "outliers", "spike_last", "constant", "near_zero")


def fused_add_rms_norm_reference(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None = None,
    eps: float = 1e-6,
    offset: float = 0.0,
) -> None:
    """``residual += x``, then ``x = residual / sqrt(mean(residual^2) + eps) * (offset + weight)``.

    Halves are computed in fp32, each result rounded once; the norm is that of the sum before rounding. ``offset`` is 1
    for Gemma's weights, which are stored minus 1. Without a weight the norm is not multiplied.
    """
    check_eps("fused_add_rms_norm", eps)
    total = x.to(torch.promote_types(x.dtype, torch.float32)) + residual
    normed = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps)
    residual.copy_(total)
    x.copy_(normed if weight is None else normed * (weight.to(total.dtype) + offset))


def _problem(arguments: Arguments) -> Mapping[str, Value]:
    op = arguments.op
    check_eps(op, arguments.number("eps"))
    x, residual = float_tensor(arguments, "x"), float_tensor(arguments, "residual")
    if not x.shape:
        raise InvalidArgumentError(f"{op}: x has no dimension to normalise", hint="expected [..., cols]")
    if residual.shape != x.shape:
        raise InvalidArgumentError(
            f"{op}: residual has shape {shape_text(residual.shape)} but x has {shape_text(x.shape)}",
            hint="x is added to the residual in place: give both one shape, e.g. residual.view_as(x)",
        )
    same_dtype(op, ("x", x), ("residual", residual))
    for name, spec in (("x", x), ("residual", residual)):
        check_writable(op, name, spec)
    offset, weighted = arguments.number("offset"), arguments["weight"] is not None
    if not math.isfinite(offset) or (offset and not weighted):
        raise InvalidArgumentError(
            f"{op}: offset={offset}" + ("" if weighted else " without a weight that it is added to"),
            hint="expected a finite number, e.g. 1.0 for Gemma's weights, and 0.0 where there is no weight",
        )
    if weighted:
        _check_weight(op, x, float_tensor(arguments, "weight"))
    rows, cols = math.prod(x.shape[:-1]), x.shape[-1]
    return {"rows": rows, "cols": cols, "weight": weighted, "dtype": dtype_name(x.dtype)}


def _check_weight(op: str, x: TensorSpec, weight: TensorSpec) -> None:
    if weight.shape != x.shape[-1:]:
        raise InvalidArgumentError(
            f"{op}: weight has shape {shape_text(weight.shape)} but x has {x.shape[-1]} columns"
            f" (shape {shape_text(x.shape)})",
            hint=f"expected a weight of shape {x.shape[-1]}, or None",
        )
    if weight.dtype != torch.float32 or x.dtype not in HALVES:
        same_dtype(op, ("x", x), ("weight", weight))


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    shape, dtype = (problem.rows, problem.cols), problem.torch_dtype
    eps, offset = 1e-6, 0.0
    if kind == "constant":
        x, residual = (fills.constant(shape, dtype, generator, value) for value in (2.0, 1.0))
        weight = fills.constant(shape[1:], dtype, generator, 0.75)
    else:
        x, residual = fills.normal(shape, dtype, generator), fills.normal(shape, dtype, generator)
        weight = fills.normal(shape[1:], dtype, generator).mul_(0.25).add_(1.0)
    if kind == "outliers":
        # 300 * 300 overflows a float16 accumulator
        fills.plant_outliers(x, 300.0, generator)
    elif kind == "spike_last":
        # 64 times as large as all the other columns together
        residual[:, -1:] = 8.0 * math.sqrt(problem.cols)
    elif kind == "near_zero":
        # mean of the squares is about 2e-6, so that eps decides; neither it nor the offset has its default
        x.mul_(2.0**-10)
        residual.mul_(2.0**-10)
        # makes its whole row NaN
        fills.plant_in_rows(x, (torch.nan,), generator)
        eps, offset = 1e-5, float(problem.weight)
    return x, residual, weight if problem.weight else None, eps, offset


FUSED_ADD_RMS_NORM = rows_op(
    "fused_add_rms_norm(Tensor(a!) x, Tensor(b!) residual, Tensor? weight=None,"
    " float eps=1e-6, float offset=0.0) -> ()",
    fused_add_rms_norm_reference,
    rows=("x", "residual"),
    flop=5,
    problem=_problem,
    inputs=_inputs,
    # three roundings to half: vLLM's kernel rounds the sum before the norm, and the norm before the weight
    tolerance=Tolerance(rtol=units(float32=3.0, half=3.1), atol=underflow(4), scale=rms_norm_scale),
    # one addition, rounded once: an exact rule
    tolerances={"residual": Tolerance(units(float32=1.1, half=1.1), underflow(), lambda _, reference: reference.abs())},
    kinds=KINDS,
    numbers=frozenset({"eps"}),
    alike={"weight": "x"},
    weights=frozenset({"weight"}),
)
