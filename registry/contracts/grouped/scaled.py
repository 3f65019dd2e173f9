"""grouped_scaled_mm: each expert's rows times that expert's weight, both in float8 or int8 with float32 scales.

Rows are quantised as quantize_per_token does it, weights with a scale for each row; products are those of scaled_mm.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from ...contract import Backward, Floor, Op, RowMajor, Tolerance
from ...errors import InvalidArgumentError
from ...problem import Arguments, Problem, Value, check_choice, dtype_name
from ..checks import positive, same_dtype, shape_text
from ..rounding import underflow, units
from ..scaled_mm import DTYPES, FEW_ROUNDINGS, OUT_DTYPES, QUANTISE_BOTH, check_length, product_scale
from ..scaled_mm_inputs import scaled_inputs
from ..segments import check_number_of, spans
from .dense import grouped_sizes
from .routing import ROUTING, busy_experts, check_offsets, check_offsets_data, draw_offsets, gap

KINDS = ("normal", "outliers", "spike_last", "blocks", "gaps")

_NAME = "grouped_scaled_mm"


def grouped_scaled_mm_reference(
    x: torch.Tensor,
    weights: torch.Tensor,
    offsets: torch.Tensor,
    scale_x: torch.Tensor,
    scale_weights: torch.Tensor,
    out_dtype: str = "bfloat16",
) -> torch.Tensor:
    """``y[r] = (x[r] * scale_x[r]) @ (weights[i] * scale_weights[i]).T`` for the rows r of expert i; 0 for other rows.

    x is ``[m, k]``, weights ``[experts, n, k]``, both float8_e4m3fn or int8; scale_x ``[m, 1]`` and scale_weights
    ``[experts, n, 1]``, float32; y ``[m, n]`` in ``out_dtype``. The offsets as in ``grouped_gemm``. Products of int8
    are summed exactly, of float8 in float32, then scaled and rounded once.
    """
    exact = torch.float64 if x.dtype == torch.int8 else torch.promote_types(scale_x.dtype, torch.float32)
    rows, n, found = x.shape[0], weights.shape[1], spans(offsets, x.shape[0])
    parts = [scale_x.new_zeros(found[0][0], n, dtype=exact)]
    for expert, (begin, end) in enumerate(found):
        if end > begin:
            product = torch.nn.functional.linear(x[begin:end].to(exact), weights[expert].to(exact))
            parts.append(product * scale_x[begin:end] * scale_weights[expert].reshape(-1))
    parts.append(parts[0].new_zeros(rows - found[-1][1], n))
    return torch.cat(parts).to(torch.float64 if scale_x.dtype == torch.float64 else getattr(torch, out_dtype))


def _problem(arguments: Arguments) -> Mapping[str, Value]:
    x, weights, op = arguments.tensor("x"), arguments.tensor("weights"), arguments.op
    if dtype_name(x.dtype) not in DTYPES:
        raise InvalidArgumentError(
            f"{op}: x is {dtype_name(x.dtype)}, expected float8_e4m3fn or int8",
            hint='x, scale_x = registry.call("quantize_per_token", rows, "float8_e4m3fn")',
        )
    same_dtype(op, ("x", x), ("weights", weights), hint=QUANTISE_BOTH)
    experts, n, k = grouped_sizes(op, x, weights)
    check_length(op, dtype_name(x.dtype), k)
    _check_scale(arguments, "scale_x", (x.shape[0], 1), "one a row of x")
    _check_scale(arguments, "scale_weights", (experts, n, 1), "one a row of each expert's weight")
    check_offsets(arguments, experts)
    out_dtype = arguments.text("out_dtype")
    check_choice(op, "out_dtype", out_dtype, OUT_DTYPES)
    dims: dict[str, Value] = {"m": x.shape[0], "n": n, "k": k, "experts": experts}
    return dims | {"out_dtype": out_dtype, "dtype": dtype_name(x.dtype)}


def _check_scale(arguments: Arguments, name: str, shape: tuple[int, ...], what: str) -> None:
    scale = arguments.tensor(name)
    if scale.dtype != torch.float32:
        raise InvalidArgumentError(
            f"{arguments.op}: {name} is {dtype_name(scale.dtype)}, expected float32", hint=f"{name}.float()"
        )
    if scale.shape != shape:
        raise InvalidArgumentError(
            f"{arguments.op}: {name} has shape {shape_text(scale.shape)}", hint=f"expected {what}: {list(shape)}"
        )


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    experts, n, k = problem.experts, problem.n, problem.k
    # drawn as for one weight as wide as all experts' together
    joint = Problem(_NAME, {**problem.dims, "n": experts * n, "scales": "row", "bias": False})
    x, weights, scale_x, scale_weights, *_ = scaled_inputs(joint, "normal" if kind == "gaps" else kind, generator)
    beside = gap(problem.m) if kind == "gaps" else 0
    if beside:
        ends = (slice(beside), slice(problem.m - beside, None))
        for rows in ends:
            scale_x[rows] = torch.nan
        if x.dtype.is_floating_point:
            for rows in (*ends, slice(problem.m // 2, problem.m // 2 + 1)):
                x[rows, 0] = torch.nan
    offsets = draw_offsets(problem, generator, beside)
    return x, weights.view(experts, n, k), offsets, scale_x, scale_weights.view(experts, n, 1), problem.out_dtype


def _check(problem: Problem) -> None:
    positive(problem, "m", "n", "k", "experts")
    check_number_of(problem, "experts")
    check_length(problem.op, problem.dtype, problem.k)


def _floor(problem: Problem) -> Floor:
    m, n, k, itemsize = problem.m, problem.n, problem.k, getattr(torch, problem.out_dtype).itemsize
    # a byte a level, and four a scale
    moved = m * (k + 4) + busy_experts(problem) * n * (k + 4) + m * n * itemsize + 4 * (problem.experts + 1)
    return Floor(bytes=moved, flop=2 * m * n * k)


def _scale(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    return product_scale(problem, reference, FEW_ROUNDINGS)


def _examples() -> tuple[dict[str, Value], ...]:
    shapes = ((1, 64, 128, 4, 0), (7, 33, 129, 5, 1), (40, 72, 96, 3, 2), (50, 24, 300, 9, 1))
    return tuple(
        {
            "m": m,
            "n": n,
            "k": k,
            "experts": experts,
            "routing": ROUTING[routing],
            "out_dtype": OUT_DTYPES[(place + step) % 3],
            "dtype": dtype,
        }
        for step, dtype in enumerate(DTYPES)
        for place, (m, n, k, experts, routing) in enumerate(shapes)
    )


GROUPED_SCALED_MM = Op(
    name=_NAME,
    schema=(
        f"{_NAME}(Tensor x, Tensor weights, Tensor offsets, Tensor scale_x, Tensor scale_weights, "
        'str out_dtype="bfloat16") -> Tensor y'
    ),
    version=1,
    reference=grouped_scaled_mm_reference,
    fake=RowMajor(lambda x, weights, *rest: [((x.shape[0], weights.shape[1]), getattr(torch, rest[-1]))]),
    problem=_problem,
    inputs=_inputs,
    floor=_floor,
    tolerance=Tolerance(rtol=units(float32=2.0, half=1.5), atol=underflow(), scale=_scale),
    static=frozenset({"n", "k", "experts"}),
    dynamic=frozenset({"m"}),
    choices={"dtype": DTYPES, "out_dtype": OUT_DTYPES},
    distributions={"routing": ROUTING},
    kinds=KINDS,
    examples=_examples(),
    check=_check,
    check_data=partial(check_offsets_data, _NAME),
    backward=Backward.none(),
    weights=frozenset({"weights", "scale_weights"}),
    independent=frozenset({"x", "weights"}),
)
