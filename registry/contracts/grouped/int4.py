"""grouped_gemm_int4: each expert's rows times that expert's weight of 4 bits.

The weights are frozen, as in gemm_int8 and its family, whose packing and kinds of inputs they have.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from ...contract import Backward, Floor, Op, Packed, RowMajor, Tolerance
from ...errors import InvalidArgumentError
from ...packed import LAYOUT, PackedExperts, check_format, check_parts, dequantized, zero_kind
from ...problem import Arguments, Problem, TensorSpec, Value, dtype_name
from ..checks import FLOATS, arguments_by_name, float_dtype, float_tensor, positive, refuse_type, shape_text
from ..packed_gemm import packed_scale, weight_bytes
from ..packed_gemm_inputs import KINDS, Format, packed_inputs
from ..rounding import underflow, units
from ..segments import check_number_of, spans
from .routing import ROUTING, busy_experts, check_offsets, check_offsets_data, draw_offsets, gap

BITS = 4
_NAME = "grouped_gemm_int4"
_PARTS = {name: name for name in ("qweight", "scales", "zeros", "bits", "group_size")} | {"k": "shape[1]"}


def grouped_gemm_int4_reference(
    x: torch.Tensor,
    qweight: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    bits: int,
    group_size: int,
    k: int,
    offsets: torch.Tensor,
) -> torch.Tensor:
    """``y[r] = x[r] @ W[i]`` for the rows r of expert i, ``W[i] = (q - zero) * scale``; 0 for other rows.

    ``[m, K]`` to ``[m, N]``; qweight is ``[experts, ceil(K / 8), N]``, scales and zeros ``[experts, groups, N]``. The
    offsets as in ``grouped_gemm``. Weights and products in at least float32, rounded once.
    """
    accumulator = torch.promote_types(x.dtype, torch.float32)
    rows, n, found = x.shape[0], qweight.shape[2], spans(offsets, x.shape[0])
    wide = x.to(accumulator)
    # no rows of x: autograd records the product also where no expert has a row, as torch's products do
    parts = [wide.new_zeros(found[0][0], n), wide[:0, :1].expand(0, n)]
    for expert, (begin, end) in enumerate(found):
        if end > begin:
            zero = None if zeros is None else zeros[expert]
            weight = dequantized(qweight[expert], scales[expert], zero, group_size, accumulator, bits=bits, k=k)
            parts.append(wide[begin:end] @ weight)
    parts.append(wide.new_zeros(rows - found[-1][1], n))
    return torch.cat(parts).to(x.dtype)


def _flatten(*args: Any, **attributes: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """A call ``(x, weights, offsets)`` as the schema's arguments; a call with the schema's arguments is unchanged."""
    if len(args) > 3 or "qweight" in attributes:
        return args, attributes
    given = arguments_by_name(_NAME, ("x", "weights", "offsets"), (), args, attributes)
    weights = given["weights"]
    if not isinstance(weights, PackedExperts):
        made = "weights = registry.PackedExperts.stack([registry.quantize(weight) for weight in ...])"
        refuse_type(_NAME, "weights", weights, "PackedExperts", made)
    parts = (weights.qweight, weights.scales, weights.zeros, weights.bits, weights.group_size, weights.shape[1])
    return (given["x"], *parts, given["offsets"]), {}


def _problem(arguments: Arguments) -> Mapping[str, Value]:
    x, dims = float_tensor(arguments, "x", FLOATS), weight_dims(arguments, "x")
    if len(x.shape) != 2 or x.shape[1] != dims["k"]:
        raise InvalidArgumentError(
            f"{arguments.op}: x has shape {shape_text(x.shape)} but weights have K={dims['k']}",
            hint=f"expected [m, {dims['k']}]",
        )
    return {"m": x.shape[0], **dims}


def weight_dims(arguments: Arguments, name: str) -> dict[str, Value]:
    """The dimensions by weights and offsets. Raises InvalidArgumentError unless they fit the rows, tensor ``name``."""
    op, rows = arguments.op, arguments.tensor(name)
    qweight, scales, zeros = (
        arguments.tensor("qweight"), arguments.tensor("scales"), arguments.optional_tensor("zeros")
    )  # fmt: skip
    bits, group_size, k = (arguments.integer(name) for name in ("bits", "group_size", "k"))
    if bits != BITS:
        raise InvalidArgumentError(
            f"{op}: weights of {bits} bits", hint=f"expected {BITS}: registry.quantize(weight, bits={BITS})"
        )
    check_format(op, bits, group_size, k, LAYOUT)
    for each, part in (("qweight", qweight), ("scales", scales), ("zeros", zeros)):
        if part is not None and (len(part.shape) != 3 or not 0 < part.shape[0] == qweight.shape[0]):
            raise InvalidArgumentError(
                f"{op}: {each} has shape {shape_text(part.shape)}", hint="expected a part of each expert, stacked"
            )
    experts, _, n = qweight.shape
    zero = None if zeros is None else _of_one(zeros)
    check_parts(op, _of_one(qweight), _of_one(scales), zero, group_size, (n, k), bits=bits)
    if scales.dtype != rows.dtype:
        raise InvalidArgumentError(
            f"{op}: {name} is {dtype_name(rows.dtype)} but the scales are {dtype_name(scales.dtype)}",
            hint=f"use weights.to(dtype=torch.{dtype_name(rows.dtype)})",
        )
    check_offsets(arguments, experts)
    dims: dict[str, Value] = {"n": n, "k": k, "group_size": group_size, "experts": experts}
    return dims | {"zeros": zero_kind(zeros), "dtype": dtype_name(rows.dtype)}


def _of_one(part: TensorSpec) -> TensorSpec:
    """The spec of one expert's slice of ``part``."""
    return TensorSpec.contiguous(part.shape[1:], part.dtype, part.device)


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    x, qweight, scales, zeros, offsets = drawn(problem, kind, generator, problem.k)
    return x, qweight, scales, zeros, BITS, problem.group_size, problem.k, offsets


def drawn(problem: Problem, kind: str, generator: torch.Generator, across: int) -> tuple[Any, ...]:
    """Rows ``[m, across]``, words, scales, zero points and offsets; in the kind "groups" some rows have no expert."""
    dims = {**problem.dims, "act_order": False, "bias": False}
    form, experts = Format(BITS, None), problem.experts
    # drawn as for one weight as wide as all experts' together; rows do not depend on the number of experts
    _, *parts = packed_inputs(form, Problem(_NAME, {**dims, "n": problem.n * experts}), kind, generator)
    stacked = [None if part is None else _stacked(part, experts) for part in parts[:3]]
    rows, *_ = packed_inputs(form, Problem(_NAME, {**dims, "n": 1, "k": across}), kind, generator)
    beside = gap(problem.m) if kind == "groups" else 0
    rows[:beside] = torch.nan
    rows[problem.m - beside :] = torch.nan
    return rows, *stacked, draw_offsets(problem, generator, beside)


def _stacked(part: torch.Tensor, experts: int) -> torch.Tensor:
    """``[rows, experts * N]`` as ``[experts, rows, N]``."""
    return part.view(part.shape[0], experts, -1).transpose(0, 1).contiguous()


def check(problem: Problem) -> None:
    positive(problem, "m", "n", "k", "group_size", "experts")
    check_number_of(problem, "experts")
    float_dtype(problem, FLOATS)
    check_format(problem.op, BITS, problem.group_size, problem.k, LAYOUT)
    if problem.dtype == "float32" and problem.zeros == "integer":
        raise InvalidArgumentError(
            f"{problem.op}: zeros 'integer' beside float32 scales", hint="float32 zero points are any numbers: 'float'"
        )


def floor(problem: Problem) -> Floor:
    m, n, k, itemsize = problem.m, problem.n, problem.k, problem.torch_dtype.itemsize
    weights = busy_experts(problem) * weight_bytes(BITS, problem)
    moved = (m * k + m * n) * itemsize + weights + 4 * (problem.experts + 1)
    return Floor(bytes=moved, flop=2 * m * n * k)


TOLERANCE = Tolerance(units(float32=2.0, half=1.5), underflow(), packed_scale)


def _examples() -> tuple[Mapping[str, Value], ...]:
    shapes = ((1, 40, 128, 128, 3, 1), (9, 33, 72, 32, 4, 1), (40, 24, 136, 136, 3, 2), (17, 40, 64, 16, 9, 0))
    found: list[Mapping[str, Value]] = []
    for dtype in map(dtype_name, FLOATS):
        for place, (m, n, k, group_size, experts, routing) in enumerate(shapes):
            zeros = ("none", "integer", "float")[place % 3]
            zeros = "float" if (dtype, zeros) == ("float32", "integer") else zeros
            dims: dict[str, Value] = {"m": m, "n": n, "k": k, "group_size": group_size, "experts": experts}
            found.append({**dims, "zeros": zeros, "routing": ROUTING[routing], "dtype": dtype})
    return tuple(found)


GROUPED_GEMM_INT4 = Op(
    name=_NAME,
    schema=f"{_NAME}(Tensor x, Tensor qweight, Tensor scales, Tensor? zeros, int bits, int group_size, int k, "
    "Tensor offsets) -> Tensor y",
    version=1,
    reference=grouped_gemm_int4_reference,
    fake=RowMajor(lambda x, qweight, *_: [((x.shape[0], qweight.shape[2]), x.dtype)]),
    problem=_problem,
    inputs=_inputs,
    floor=floor,
    tolerance=TOLERANCE,
    static=frozenset({"n", "k", "group_size", "experts", "dtype"}),
    dynamic=frozenset({"m"}),
    choices={"zeros": ("none", "integer", "float")},
    distributions={"routing": ROUTING},
    kinds=KINDS,
    examples=_examples(),
    check=check,
    check_data=partial(check_offsets_data, _NAME),
    flatten=_flatten,
    packed=Packed("weights", PackedExperts, _PARTS),
    backward=Backward(f"{_NAME}_backward", saved=("qweight", "scales", "zeros", "offsets")),
    weights=frozenset({"qweight", "scales", "zeros"}),
    independent=frozenset({"qweight"}),
)
