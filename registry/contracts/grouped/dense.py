"""grouped_gemm: each expert's rows times that expert's weight, in one dtype.

float32 is multiplied in float32: never in TF32 unless the process has asked torch for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from ...contract import Backward, Floor, Op, RowMajor, Tolerance
from ...errors import InvalidArgumentError
from ...problem import Arguments, Problem, TensorSpec, Value, dtype_name
from .. import fills
from ..checks import FLOATS, float_dtype, float_tensor, positive, same_dtype, shape_text
from ..linear import sum_scale
from ..rounding import underflow, units
from ..segments import check_number_of, spans
from .routing import ROUTING, busy_experts, check_offsets, check_offsets_data, draw_offsets, gap, plant_beside

KINDS = ("normal", "outliers", "spike_last", "gaps")

RTOL = units(float32=2.0, half=1.5)


def grouped_gemm_reference(x: torch.Tensor, weights: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """``y[r] = x[r] @ weights[i].T`` for each row r from ``offsets[i]`` to ``offsets[i + 1]``; 0 for all other rows.

    x is ``[m, k]``, weights ``[experts, n, k]``, offsets int32 or int64 ``[experts + 1]``, y ``[m, n]``. Rows before
    ``offsets[0]`` and from ``offsets[experts]`` on belong to no expert, so that a process that holds some of the
    experts may pass their part of all offsets. Offsets are clamped to 0 to m. They must not decrease: otherwise the
    result is unspecified, and torch's own kernel stops with an assertion on the device. Halves are multiplied in fp32,
    and rounded once.
    """
    accumulator = torch.promote_types(x.dtype, torch.float32)
    found = spans(offsets, x.shape[0])
    # not written into one tensor, so that torch.func can differentiate it
    parts = [
        x[begin:end].to(accumulator) @ weight.to(accumulator).T
        for (begin, end), weight in zip(found, weights, strict=True)
    ]
    before, after = found[0][0], x.shape[0] - found[-1][1]
    y = torch.cat([parts[0].new_zeros(before, weights.shape[1]), *parts, parts[0].new_zeros(after, weights.shape[1])])
    return y.to(x.dtype)


def grouped_sizes(op: str, x: TensorSpec, weights: TensorSpec) -> tuple[int, int, int]:
    """Experts, n and k of weights ``[experts, n, k]``. Raises InvalidArgumentError if rows ``[m, k]`` do not fit."""
    if len(weights.shape) != 3 or 0 in weights.shape:
        raise InvalidArgumentError(
            f"{op}: weights has shape {shape_text(weights.shape)}", hint="expected [experts, n, k], none 0"
        )
    experts, n, k = weights.shape
    if len(x.shape) != 2 or x.shape[1] != k:
        raise InvalidArgumentError(
            f"{op}: x has shape {shape_text(x.shape)} but weights are {shape_text(weights.shape)}",
            hint=f"expected [m, {k}]",
        )
    return experts, n, k


def grouped_dims(arguments: Arguments) -> dict[str, Value]:
    """The dimensions of a call with x, weights and offsets. Raises InvalidArgumentError if these do not fit."""
    x, weights = float_tensor(arguments, "x"), float_tensor(arguments, "weights")
    same_dtype(arguments.op, ("x", x), ("weights", weights))
    experts, n, k = grouped_sizes(arguments.op, x, weights)
    check_offsets(arguments, experts)
    return {"m": x.shape[0], "n": n, "k": k, "experts": experts, "dtype": dtype_name(x.dtype)}


def drawn(problem: Problem, kind: str, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """x, weights and offsets; outputs are about as large as activations."""
    m, n, k, dtype = problem.m, problem.n, problem.k, problem.torch_dtype
    weights = fills.normal((problem.experts, n, k), dtype, generator).mul_(k**-0.5)
    if kind == "gaps":
        x = fills.constant((m, k), dtype, generator, 0.5)
        return x, weights, draw_offsets(problem, generator, gap(m))
    x = fills.normal((m, k), dtype, generator)
    if kind == "outliers":
        fills.plant_outliers(x, 60.0, generator)
    elif kind == "spike_last":
        # 64 times as large as all the other columns together
        x[:, -1:] = 8.0 * math.sqrt(k)
    return x, weights, draw_offsets(problem, generator)


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    x, weights, offsets = drawn(problem, kind, generator)
    return (plant_beside(x) if kind == "gaps" else x), weights, offsets


def _floor(problem: Problem) -> Floor:
    m, n, k = problem.m, problem.n, problem.k
    numbers = m * k + busy_experts(problem) * n * k + m * n
    return Floor(bytes=numbers * problem.torch_dtype.itemsize + 4 * (problem.experts + 1), flop=2 * m * n * k)


def check(problem: Problem) -> None:
    """Raise InvalidArgumentError for dimensions that no call can have."""
    positive(problem, "m", "n", "k", "experts")
    check_number_of(problem, "experts")
    float_dtype(problem)


def row_scale(problem: Problem, reference: torch.Tensor, terms: int) -> torch.Tensor:
    """The tolerance's scale for products of rows, each a sum of ``terms`` terms."""
    return sum_scale(problem, reference, reference.square().mean(-1, keepdim=True).sqrt_(), terms)


def examples() -> tuple[Mapping[str, Value], ...]:
    """Small problems, most of them odd: experts without rows, one row to an expert, more experts than rows."""
    shapes = ((1, 64, 128, 4, 0), (7, 33, 129, 5, 1), (40, 72, 96, 3, 2), (50, 24, 40, 9, 1))
    return tuple(
        {"m": m, "n": n, "k": k, "experts": experts, "routing": ROUTING[routing], "dtype": dtype_name(dtype)}
        for dtype in FLOATS
        for m, n, k, experts, routing in shapes
    )


GROUPED_GEMM = Op(
    name="grouped_gemm",
    schema="grouped_gemm(Tensor x, Tensor weights, Tensor offsets) -> Tensor y",
    version=1,
    reference=grouped_gemm_reference,
    fake=RowMajor(lambda x, weights, *_: [((x.shape[0], weights.shape[1]), x.dtype)]),
    problem=grouped_dims,
    inputs=_inputs,
    floor=_floor,
    tolerance=Tolerance(RTOL, underflow(), lambda problem, y: row_scale(problem, y, problem.k)),
    static=frozenset({"n", "k", "experts", "dtype"}),
    dynamic=frozenset({"m"}),
    distributions={"routing": ROUTING},
    kinds=KINDS,
    examples=examples(),
    check=check,
    check_data=partial(check_offsets_data, "grouped_gemm"),
    backward=Backward("grouped_gemm_backward", saved=("x", "weights", "offsets")),
    weights=frozenset({"weights"}),
)
