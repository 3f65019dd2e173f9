"""gemm_int4: activations in half precision times a weight of 4 bits, and the gradient by the activations.

Activations in float8 or int8 need scales, which this schema does not have: they have other ops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from ...contract import Backward, Floor, Op, Packed, RowMajor, Tolerance
from ...errors import InvalidArgumentError
from ...packed import PackedWeight, column_pieces, dequantized
from ...problem import Arguments, Problem, Value, dtype_name
from ..checks import HALVES, arguments_by_name, refuse_type, shape_text
from ..rounding import fp32_weight, underflow, units
from .formats import check, dims_beside
from .inputs import KINDS, inputs


def gemm_int4_reference(
    a: torch.Tensor,
    qweight: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    bits: int,  # noqa: ARG001
    group_size: int,
    k: int,  # noqa: ARG001
    layout: str,  # noqa: ARG001
) -> torch.Tensor:
    """``a @ W`` with ``W[k, n] = (q[k, n] - zero) * scale``: ``[..., K]`` to ``[..., N]``.

    Weights and products in at least float32, rounded once. See registry/packed/layout.py for the layout. ``bits``,
    ``k`` and ``layout`` are not used here; they are checked when the problem is made.
    """
    accumulator = torch.promote_types(a.dtype, torch.float32)
    wide = a.to(accumulator)
    pieces = [
        (wide @ dequantized(words, scale, zero, group_size, accumulator)).to(a.dtype)
        for words, scale, zero in column_pieces(qweight, scales, zeros)
    ]
    return torch.cat(pieces, dim=-1).contiguous()


def gemm_int4_backward_reference(
    grad_y: torch.Tensor,
    qweight: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    bits: int,  # noqa: ARG001
    group_size: int,
    k: int,
    layout: str,  # noqa: ARG001
) -> torch.Tensor:
    """``grad_y @ W.T``, ``[..., N]`` to ``[..., K]``: weights and products in at least float32, rounded once."""
    accumulator = torch.promote_types(grad_y.dtype, torch.float32)
    grad_a, begin = grad_y.new_zeros((*grad_y.shape[:-1], k), dtype=accumulator), 0
    for packed, scale, zero in column_pieces(qweight, scales, zeros):
        end = begin + packed.shape[1]
        grad_a += grad_y[..., begin:end].to(accumulator) @ dequantized(packed, scale, zero, group_size, accumulator).T
        begin = end
    return grad_a.to(grad_y.dtype)


def _flatten(*args: Any, **attributes: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """A call ``(a, w)`` as the schema's arguments; a call with the schema's arguments is unchanged."""
    if len(args) == 2 and not attributes and type(args[1]) is PackedWeight:
        return _in_schema_order(*args), attributes
    if len(args) > 2 or "qweight" in attributes:
        return args, attributes
    given = arguments_by_name("gemm_int4", ("a", "w"), (), args, attributes)
    a, w = given["a"], given["w"]
    if not isinstance(w, PackedWeight):
        refuse_type("gemm_int4", "w", w, "a PackedWeight", "w = registry.quantize(weight, bits=4, group_size=128)")
    return _in_schema_order(a, w), {}


def _in_schema_order(a: Any, w: PackedWeight) -> tuple[Any, ...]:
    return a, w.qweight, w.scales, w.zeros, w.bits, w.group_size, w.shape[1], w.layout


def _problem(arguments: Arguments, name: str = "a", summed: str = "k") -> Mapping[str, Value]:
    """The dimensions of a call; ``name``: the argument whose last extent is summed over, the dimension ``summed``."""
    like, dims = dims_beside(arguments, name)
    if not like.shape or like.shape[-1] != dims[summed]:
        raise InvalidArgumentError(
            f"{arguments.op}: {name} has shape {shape_text(like.shape)} but w has {summed.upper()}={dims[summed]}",
            hint=f"expected {name} of shape [..., {dims[summed]}]",
        )
    return {"m": math.prod(like.shape[:-1]), **dims}


def _floor(problem: Problem) -> Floor:
    m, n, k, itemsize = problem.m, problem.n, problem.k, problem.torch_dtype.itemsize
    per_group = n * (k // problem.group_size) * itemsize
    weight = k * n * problem.bits // 8 + per_group * (1 if problem.symmetric else 2)
    return Floor(bytes=(m * k + m * n) * itemsize + weight, flop=2 * m * n * k)


def _scale(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    """Relative to each output, and to its row's root mean square: a sum of terms that cancel.

    A weight rounded to half precision before the product, as tinygemm and every dequantise-then-multiply does,
    errs by 0.4 to 0.8 roundings of the row's rms: 5 in the worst of 200 million outputs.
    """
    rms = reference.square().mean(-1, keepdim=True).sqrt_()
    summed = problem.n if problem.op.endswith("_backward") else problem.k
    return reference.abs() + rms * (4 + fp32_weight(problem) * math.sqrt(summed))


def _examples() -> tuple[dict[str, Value], ...]:
    shapes = ((1, 64, 128, 128), (3, 33, 256, 64), (17, 128, 384, 32), (5, 72, 136, 136), (130, 257, 512, 128))
    return tuple(
        {"m": m, "n": n, "k": k, "group_size": group_size, "bits": 4, "dtype": dtype, "symmetric": symmetric}
        for dtype in map(dtype_name, HALVES)
        for symmetric in (False, True)
        for m, n, k, group_size in shapes
    )


_PARTS = {name: name for name in ("qweight", "scales", "zeros", "bits", "group_size", "layout")} | {"k": "shape[1]"}

_SHARED: dict[str, Any] = {
    "version": 1,
    "floor": _floor,
    "tolerance": Tolerance(rtol=units(float32=2.0, half=1.5), atol=underflow(), scale=_scale),
    "static": frozenset({"n", "k", "group_size", "bits", "dtype"}),
    "choices": {"symmetric": (False, True)},
    "dynamic": frozenset({"m"}),
    "kinds": KINDS,
    "examples": _examples(),
    "check": check,
    "weights": frozenset({"qweight", "scales", "zeros"}),
    "independent": frozenset({"qweight"}),
}
_WEIGHT = "Tensor qweight, Tensor scales, Tensor? zeros, int bits, int group_size, int k, str layout"

GEMM_INT4 = Op(
    name="gemm_int4",
    schema=f"gemm_int4(Tensor a, {_WEIGHT}) -> Tensor y",
    reference=gemm_int4_reference,
    fake=RowMajor(lambda a, qweight, *_: [((*a.shape[:-1], qweight.shape[1]), a.dtype)]),
    problem=_problem,
    inputs=inputs,
    flatten=_flatten,
    packed=Packed("w", PackedWeight, _PARTS),
    backward=Backward("gemm_int4_backward", ("qweight", "scales", "zeros")),
    **_SHARED,
)
GEMM_INT4_BACKWARD = Op(
    name="gemm_int4_backward",
    schema=f"gemm_int4_backward(Tensor grad_y, {_WEIGHT}) -> Tensor grad_a",
    reference=gemm_int4_backward_reference,
    fake=RowMajor(lambda grad_y, *rest: [((*grad_y.shape[:-1], rest[-2]), grad_y.dtype)]),
    problem=partial(_problem, name="grad_y", summed="n"),
    inputs=partial(inputs, backward=True),
    **_SHARED,
)
