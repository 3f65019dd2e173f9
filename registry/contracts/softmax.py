"""softmax over one dimension."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ..contract import Backward, Floor, Op, Tolerance
from ..problem import Arguments, Problem, Value, dtype_name
from . import fills
from .checks import check_dim, float_dtype, float_tensor, normalised_dim, positive, row_examples
from .rounding import fp32_weight, underflow, units

KINDS = ("normal", "outliers", "spike_last", "constant", "masked")


def softmax_reference(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """``exp(x - max) / sum(exp(x - max))`` along ``dim``; halves in fp32, rounded once. Row-major output."""
    check_dim("softmax", dim, x.dim())
    accumulator = torch.promote_types(x.dtype, torch.float32)
    return torch.softmax(x, dim, dtype=accumulator).to(x.dtype).contiguous()


def softmax_fake(x: torch.Tensor, *_: object) -> torch.Tensor:
    """As ``x``, row-major."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def softmax_problem(arguments: Arguments, name: str = "x") -> Mapping[str, Value]:
    """Dimensions of tensor ``name`` and ``dim``, forward and backward."""
    x = float_tensor(arguments, name)
    dim = normalised_dim(arguments.op, arguments.integer("dim"), x, name)
    shape = x.shape or (1,)
    inner = math.prod(shape[dim + 1 :])
    return {"rows": math.prod(shape[:dim]) * inner, "cols": shape[dim], "dtype": dtype_name(x.dtype)}


def rows_last(arguments: Arguments) -> Arguments:
    """The arguments with the reduced dimension last: rows are neighbours in memory where these are row-major."""
    dim = arguments.integer("dim")
    if dim == -1:
        return arguments
    return arguments.mapped(lambda spec: spec.moved(dim, -1) if spec.shape else spec)


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    shape, dtype = (problem.rows, problem.cols), problem.torch_dtype
    if kind == "constant":
        # exp(-120) is 0 in fp32: a kernel that does not subtract the maximum divides 0 by 0
        return fills.constant(shape, dtype, generator, -120.0), -1
    x = fills.normal(shape, dtype, generator)
    if kind == "outliers":
        # exp(200) overflows fp32
        fills.plant_outliers(x, 200.0, generator)
    elif kind == "spike_last":
        x[:, -1:] = 20.0
    elif kind == "masked":
        mask_front(x, generator)
        # either makes its whole row NaN; a maximum that drops NaN must leave it to the sum
        fills.plant_in_rows(x, (torch.nan, torch.inf), generator)
    return x, -1


def mask_front(x: torch.Tensor, generator: torch.Generator) -> None:
    """Left padding: each row begins with -inf, up to all but its last element, as attention scores do.

    A blocked kernel meets a first block whose maximum is -inf, and must not compute -inf - -inf.
    """
    rows, cols = x.shape
    starts = torch.randint(cols, (rows, 1), device=x.device, generator=generator)
    starts[::3] = cols - 1
    x.masked_fill_(torch.arange(cols, device=x.device) < starts, -torch.inf)


def _floor(problem: Problem) -> Floor:
    elements = problem.rows * problem.cols
    return Floor(bytes=2 * elements * problem.torch_dtype.itemsize, flop=5 * elements)


def _scale(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    """Relative to each output: 8 roundings, ``|x - logsumexp|`` of the exponent's, and those of the sum.

    A serial fp32 sum of random terms errs by about ``0.3 sqrt(cols)`` roundings.
    """
    weight = fp32_weight(problem)
    magnitude = reference.abs()
    return (
        magnitude * (1 + weight * (8 + math.sqrt(problem.cols))) + 2 * weight * torch.xlogy(magnitude, magnitude).abs_()
    )


def check_softmax(problem: Problem) -> None:
    """Dimensions that some call could have."""
    positive(problem, "rows", "cols")
    float_dtype(problem)


SOFTMAX = Op(
    name="softmax",
    schema="softmax(Tensor x, int dim=-1) -> Tensor y",
    version=1,
    reference=softmax_reference,
    fake=softmax_fake,
    problem=softmax_problem,
    inputs=_inputs,
    floor=_floor,
    tolerance=Tolerance(rtol=units(float32=2.0, half=1.1), atol=underflow(), scale=_scale),
    static=frozenset({"cols", "dtype"}),
    dynamic=frozenset({"rows"}),
    kinds=KINDS,
    examples=row_examples(),
    check=check_softmax,
    view=rows_last,
    backward=Backward(op="softmax_backward", saved=("y",)),
)
