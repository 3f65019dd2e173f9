"""gemm_int4: activations in half precision times a weight of 4 bits, and the gradient by the activations.

Activations in float8 or int8 need scales, which this schema does not have: they have other ops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from ..contract import Backward, Floor, Op, Packed, RowMajor, Tolerance
from ..errors import ArgumentTypeError, InvalidArgumentError
from ..packed import LAYOUT, PackedWeight, check_parts, column_pieces, dequantized, words
from ..problem import Arguments, Problem, TensorSpec, Value, dtype_name
from ..tracing import refuse
from . import fills
from .checks import HALVES, float_dtype, float_tensor, positive, shape_text
from .rounding import fp32_weight, underflow, units

BITS = 4
PER_WORD = 8
GROUP_SIZES = (32, 64, 128)
KINDS = ("normal", "outliers", "spike_last", "constant", "groups")


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
    given = dict(zip(("a", "w"), args, strict=False))
    if repeated := given.keys() & attributes.keys():
        refuse(f"gemm_int4: {', '.join(sorted(repeated))} was given twice", kind=ArgumentTypeError)
    given |= attributes
    if given.keys() != {"a", "w"}:
        got = ", ".join(given) or "no arguments"
        refuse(f"gemm_int4: got {got}", hint="expected a and w", kind=ArgumentTypeError)
    a, w = given["a"], given["w"]
    if not isinstance(w, PackedWeight):
        refuse(
            f"gemm_int4: w is a {type(w).__name__}, expected a PackedWeight",
            hint="w = registry.quantize(weight, bits=4, group_size=128)",
            kind=ArgumentTypeError,
        )
    return _in_schema_order(a, w), {}


def _in_schema_order(a: Any, w: PackedWeight) -> tuple[Any, ...]:
    return a, w.qweight, w.scales, w.zeros, w.bits, w.group_size, w.shape[1], w.layout


def _problem(arguments: Arguments) -> Mapping[str, Value]:
    a, dims = _dims_beside(arguments, "a")
    if not a.shape or a.shape[-1] != dims["k"]:
        raise InvalidArgumentError(
            f"{arguments.op}: a has shape {shape_text(a.shape)} but w has K={dims['k']}",
            hint=f"expected a of shape [..., {dims['k']}]",
        )
    return {"m": math.prod(a.shape[:-1]), **dims}


def _backward_problem(arguments: Arguments) -> Mapping[str, Value]:
    grad_y, dims = _dims_beside(arguments, "grad_y")
    if not grad_y.shape or grad_y.shape[-1] != dims["n"]:
        raise InvalidArgumentError(
            f"{arguments.op}: grad_y has shape {shape_text(grad_y.shape)} but w has N={dims['n']}",
            hint=f"expected grad_y of shape [..., {dims['n']}]",
        )
    return {"m": math.prod(grad_y.shape[:-1]), **dims}


def _dims_beside(arguments: Arguments, name: str) -> tuple[TensorSpec, dict[str, Value]]:
    """The argument ``name``, and the dimensions by the weight, whose scales must have the argument's dtype."""
    like = float_tensor(arguments, name, HALVES)
    qweight, scales = arguments.tensor("qweight"), arguments.tensor("scales")
    zeros = arguments.optional_tensor("zeros")
    k, group_size, bits = arguments.integer("k"), arguments.integer("group_size"), arguments.integer("bits")
    _check_format(arguments.op, bits, group_size, k, arguments.text("layout"))
    if len(qweight.shape) != 2:
        raise InvalidArgumentError(f"{arguments.op}: qweight has shape {shape_text(qweight.shape)}, expected [K/8, N]")
    n = qweight.shape[1]
    check_parts(arguments.op, qweight, scales, zeros, group_size, (n, k))
    if zeros is not None and zeros.dtype != scales.dtype:
        raise InvalidArgumentError(
            f"{arguments.op}: zeros is {dtype_name(zeros.dtype)}, so any numbers, but only integers are supported",
            hint=f"expected {dtype_name(scales.dtype)}, the scales' dtype",
        )
    if scales.dtype != like.dtype:
        raise InvalidArgumentError(
            f"{arguments.op}: {name} is {dtype_name(like.dtype)} but the scales of w are {dtype_name(scales.dtype)}",
            hint=f"use w.to(dtype=torch.{dtype_name(like.dtype)})",
        )
    dims: dict[str, Value] = {"n": n, "k": k, "group_size": group_size, "bits": bits}
    return like, dims | {"dtype": dtype_name(like.dtype), "symmetric": zeros is None}


def _inputs(problem: Problem, kind: str, generator: torch.Generator, *, backward: bool = False) -> tuple[Any, ...]:
    _check(problem)
    summed = problem.n if backward else problem.k
    a = _activations((problem.m, summed), problem.torch_dtype, kind, generator)
    qweight = _words(problem, kind, generator)
    scales, zeros = _groups(problem, kind, generator, summed)
    if kind == "groups":
        # makes its whole row NaN. No infinity: it is one or NaN by whether a weight is rounded to zero
        fills.plant_in_rows(a, (torch.nan,), generator)
    given = None if problem.symmetric else zeros
    return a, qweight, scales, given, problem.bits, problem.group_size, problem.k, LAYOUT


def _activations(shape: tuple[int, int], dtype: torch.dtype, kind: str, generator: torch.Generator) -> torch.Tensor:
    if kind == "constant":
        return fills.constant(shape, dtype, generator, 0.5)
    a = fills.normal(shape, dtype, generator)
    if kind == "outliers":
        return fills.plant_outliers(a, 60.0, generator)
    if kind == "spike_last":
        # the last element that is summed over weighs 64 times as much as all the others together
        a[:, -1:] = 8.0 * math.sqrt(shape[1])
    return a


def _words(problem: Problem, kind: str, generator: torch.Generator) -> torch.Tensor:
    shape, device = (words(problem.k, problem.bits), problem.n), generator.device
    if kind == "constant":
        # eleven in each nibble: neither zero point is 11, so that the product is not 0
        return torch.full(shape, 0xBBBBBBBB - 2**32, dtype=torch.int32, device=device)
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32, device=device, generator=generator)


def _groups(problem: Problem, kind: str, generator: torch.Generator, summed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales for outputs of about 1, and zero points. Neighbouring groups and columns always differ."""
    shape, dtype = (problem.k // problem.group_size, problem.n), problem.torch_dtype
    device = generator.device
    unit = 1 / (4.6 * math.sqrt(summed))
    if kind == "constant":
        return fills.constant(shape, dtype, generator, unit), fills.constant(shape, dtype, generator, 7.0)
    scales = torch.rand(shape, dtype=dtype, device=device, generator=generator).add_(0.5).mul_(unit)
    low, high = (0, 16) if kind == "groups" else (6, 11)
    zeros = torch.randint(low, high, shape, dtype=torch.int32, device=device, generator=generator).to(dtype)
    if kind == "groups":
        # factors 1, 4, 16 in turn along K: a neighbour's scale is wrong by at least a factor of 4
        scales *= 4.0 ** (torch.arange(shape[0], device=device) % 3).unsqueeze(1).to(dtype)
    return scales, zeros


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


def _check(problem: Problem) -> None:
    positive(problem, "m", "n", "k", "group_size", "bits")
    float_dtype(problem, HALVES)
    _check_format(problem.op, problem.bits, problem.group_size, problem.k, LAYOUT)


def _check_format(what: str, bits: int, group_size: int, k: int, layout: str) -> None:
    """Raise InvalidArgumentError for a format of PackedWeight that this op does not accept."""
    if bits != BITS:
        raise InvalidArgumentError(
            f"{what}: bits={bits}, only {BITS} is supported", hint=f"registry.quantize(weight, bits={BITS})"
        )
    if layout != LAYOUT:
        raise InvalidArgumentError(
            f"{what}: layout {layout!r}, only {LAYOUT!r} is supported",
            hint="w has act-order (g_idx) or a codebook, and gemm_int4 takes neither; use w.dequantize()",
        )
    if k < PER_WORD or k % PER_WORD:
        raise InvalidArgumentError(
            f"{what}: K={k} is no multiple of {PER_WORD}, the elements of a word",
            hint="pad the weight and the activations with zeros along K",
        )
    if group_size != k and group_size not in GROUP_SIZES:
        raise InvalidArgumentError(
            f"{what}: group_size={group_size}", hint=f"expected {', '.join(map(str, GROUP_SIZES))} or K={k}"
        )
    if k % group_size:
        raise InvalidArgumentError(
            f"{what}: K={k} is no multiple of group_size={group_size}",
            hint=f"use a group size that divides K, or K={k} itself: one scale a column",
        )


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
    "check": _check,
    "weights": frozenset({"qweight", "scales", "zeros"}),
}
_WEIGHT = "Tensor qweight, Tensor scales, Tensor? zeros, int bits, int group_size, int k, str layout"

GEMM_INT4 = Op(
    name="gemm_int4",
    schema=f"gemm_int4(Tensor a, {_WEIGHT}) -> Tensor y",
    reference=gemm_int4_reference,
    fake=RowMajor(lambda a, qweight, *_: [((*a.shape[:-1], qweight.shape[1]), a.dtype)]),
    problem=_problem,
    inputs=_inputs,
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
    problem=_backward_problem,
    inputs=partial(_inputs, backward=True),
    **_SHARED,
)
