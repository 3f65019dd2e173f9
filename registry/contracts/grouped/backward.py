"""The gradients of grouped_gemm by its rows and by the experts' weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from ...contract import Floor, Op, RowMajor, Tolerance
from ...errors import InvalidArgumentError
from ...problem import Arguments, Problem, Value
from .. import fills
from ..checks import same_dtype, shape_text
from ..linear import over_rows_scale
from ..rounding import underflow
from ..segments import spans
from .dense import GROUPED_GEMM, KINDS, RTOL, check, drawn, examples, grouped_dims, row_scale
from .routing import ROUTING, busy_experts, check_offsets_data, gap, plant_beside


def grouped_gemm_backward_reference(
    grad_y: torch.Tensor,
    x: torch.Tensor,
    weights: torch.Tensor,
    offsets: torch.Tensor,
    need_x: bool = True,
    need_weights: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each expert's rows ``grad_y @ weight`` and ``grad_y.T @ x``: ``[m, k]`` and ``[experts, n, k]``.

    0 for rows without an expert and for experts without rows; halves in fp32, rounded once. A gradient that is not
    needed is an empty tensor. The offsets as in ``grouped_gemm``.
    """
    accumulator = torch.promote_types(x.dtype, torch.float32)
    rows, found = x.shape[0], spans(offsets, x.shape[0])
    wide = grad_y.to(accumulator)
    grad_x, grad_weights = x.new_empty(0), weights.new_empty(0)
    if need_x:
        before, after = found[0][0], rows - found[-1][1]
        parts = [wide[begin:end] @ weight.to(accumulator) for (begin, end), weight in zip(found, weights, strict=True)]
        grad_x = torch.cat([wide.new_zeros(before, x.shape[1]), *parts, wide.new_zeros(after, x.shape[1])])
    if need_weights:
        grad_weights = torch.stack([wide[begin:end].T @ x[begin:end].to(accumulator) for begin, end in found])
    return grad_x.to(x.dtype), grad_weights.to(weights.dtype)


def _outputs(
    _: Any, x: Any, weights: Any, __: Any, need_x: bool = True, need_weights: bool = True
) -> list[tuple[Any, torch.dtype]]:
    return [(x.shape if need_x else (0,), x.dtype), (weights.shape if need_weights else (0,), x.dtype)]


def _problem(arguments: Arguments) -> Mapping[str, Value]:
    dims = grouped_dims(arguments)
    gradient, wanted = arguments.tensor("grad_y"), (dims["m"], dims["n"])
    if gradient.shape != wanted:
        raise InvalidArgumentError(
            f"{arguments.op}: grad_y is {shape_text(gradient.shape)} but y is {dims['m']}x{dims['n']}",
            hint="a gradient has the shape of what it is the gradient of; grad_y.expand_as(y) if it was reduced",
        )
    same_dtype(arguments.op, ("x", arguments.tensor("x")), ("grad_y", gradient))
    return dims


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    x, weights, offsets = drawn(problem, kind, generator)
    grad_y = fills.normal((problem.m, problem.n), problem.torch_dtype, generator)
    if kind == "spike_last":
        # in the last column as in x, so that no row and no column of it may be left out
        grad_y[:, -1:] = 8.0 * math.sqrt(problem.n)
    elif kind == "gaps":
        # in rows without an expert x is NaN, too, since a product with 0 would be NaN
        plant_beside(grad_y)
        x[: gap(problem.m)] = torch.nan
        x[problem.m - gap(problem.m) :] = torch.nan
    return grad_y, x, weights, offsets, True, True


def _floor(problem: Problem) -> Floor:
    m, n, k, experts = problem.m, problem.n, problem.k, problem.experts
    numbers = m * n + 2 * m * k + (busy_experts(problem) + experts) * n * k
    return Floor(bytes=numbers * problem.torch_dtype.itemsize + 4 * (experts + 1), flop=4 * m * n * k)


GROUPED_GEMM_BACKWARD = Op(
    name="grouped_gemm_backward",
    schema="grouped_gemm_backward(Tensor grad_y, Tensor x, Tensor weights, Tensor offsets, bool need_x=True, "
    "bool need_weights=True) -> (Tensor grad_x, Tensor grad_weights)",
    version=1,
    reference=grouped_gemm_backward_reference,
    fake=RowMajor(_outputs),
    problem=_problem,
    inputs=_inputs,
    floor=_floor,
    tolerance=Tolerance(RTOL, underflow(), over_rows_scale),
    tolerances={"grad_x": Tolerance(RTOL, underflow(), lambda problem, y: row_scale(problem, y, problem.n))},
    static=GROUPED_GEMM.static,
    dynamic=GROUPED_GEMM.dynamic,
    distributions={"routing": ROUTING},
    kinds=KINDS,
    examples=examples(),
    check=check,
    check_data=partial(check_offsets_data, "grouped_gemm_backward"),
    weights=GROUPED_GEMM.weights,
)
