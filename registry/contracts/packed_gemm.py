"""Activations times a packed weight of 1, 2, 4 or 8 bits, and the gradient by the activations: one contract for all.

gemm_w4a16 takes every weight of 4 bits and gemm_int4, which has faster kernels, the usual ones.

The weight is frozen, as in QLoRA: it has no gradient. registry/packed/layout.py describes its words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from ..contract import Backward, Floor, Op, Packed, RowMajor, Tolerance
from ..errors import InvalidArgumentError
from ..packed import (
    ACT_ORDER,
    CODEBOOKS,
    PackedWeight,
    check_format,
    check_parts,
    column_pieces,
    dequantized,
    groups,
    words,
    zero_kind,
)
from ..problem import Arguments, Problem, TensorSpec, Value, dtype_name
from .checks import FLOATS, arguments_by_name, float_dtype, float_tensor, positive, refuse_type, same_dtype, shape_text
from .packed_gemm_inputs import KINDS, Format, packed_inputs
from .rounding import fp32_weight, underflow, units

ZEROS = ("none", "integer", "float")
WEIGHT = "Tensor qweight, Tensor scales, Tensor? zeros, Tensor? g_idx, int bits, int group_size, int k, str layout"
PARTS = {name: name for name in ("qweight", "scales", "zeros", "g_idx", "bits", "group_size")} | {
    "k": "shape[1]",
    "layout": "layout",
}


class Weight(NamedTuple):
    """A packed weight in the schema's terms."""

    qweight: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    g_idx: torch.Tensor | None
    bits: int
    group_size: int
    k: int
    layout: str

    def pieces(self, dtype: torch.dtype) -> list[torch.Tensor]:
        """The weight in ``dtype``, in pieces ``[K, some columns]``."""
        how: dict[str, Any] = {"bits": self.bits, "k": self.k, "g_idx": self.g_idx}
        how["codebook"] = self.layout if self.layout in CODEBOOKS else None
        return [
            dequantized(packed, scales, zeros, self.group_size, dtype, **how)
            for packed, scales, zeros in column_pieces(self.qweight, self.scales, self.zeros, self.bits)
        ]


def packed_gemm_reference(a: torch.Tensor, *rest: Any) -> torch.Tensor:
    """``a @ W + bias`` with ``W[k, n] = (q[k, n] - zero) * scale``: ``[..., K]`` to ``[..., N]``.

    ``rest`` are the weight's parts and the bias or None. Weights and products in at least float32, rounded once with
    the bias added.
    """
    weight, bias = Weight(*rest[:-1]), rest[-1]
    accumulator = torch.promote_types(a.dtype, torch.float32)
    wide = a.to(accumulator)
    product = torch.cat([wide @ piece for piece in weight.pieces(accumulator)], dim=-1)
    if bias is not None:
        product = product + bias.to(accumulator)
    return product.to(a.dtype).contiguous()


def packed_gemm_backward_reference(grad_y: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """``grad_y @ W.T``, ``[..., K]``, and the sum of grad_y's rows, ``[N]``; an empty tensor if not needed.

    ``rest`` are the weight's parts, and two bools: whether the gradients of the activations and the bias are needed.
    """
    weight, (need_a, need_bias) = Weight(*rest[:-2]), rest[-2:]
    accumulator = torch.promote_types(grad_y.dtype, torch.float32)
    wide = grad_y.to(accumulator)
    grad_a, grad_bias = grad_y.new_empty(0), grad_y.new_empty(0)
    if need_a:
        pieces = weight.pieces(accumulator)
        parts = torch.split(wide, [piece.shape[1] for piece in pieces], dim=-1)
        total = torch.stack([part @ piece.T for part, piece in zip(parts, pieces, strict=True)]).sum(0)
        grad_a = total.to(grad_y.dtype).contiguous()
    if need_bias:
        grad_bias = wide.reshape(-1, wide.shape[-1]).sum(0).to(grad_y.dtype)
    return grad_a, grad_bias


def packed_gemm_ops(name: str, bits: int, codebook: str | None = None) -> tuple[Op, Op]:
    """The op ``name(a, w, bias=None)`` for weights of ``bits`` bits, and its backward op.

    Dimensions: m (dynamic), n, k, group_size, dtype; choices: zeros ("none", "integer", "float"; a codebook has none),
    act_order and bias.
    """
    form = Format(bits, codebook)
    choices: dict[str, tuple[Value, ...]] = {"zeros": ZEROS, "act_order": (False, True)}
    if codebook:
        choices = {"zeros": ("none",), "act_order": (False,)}
    weights = frozenset({"qweight", "scales", "zeros", "g_idx"})
    shared: dict[str, Any] = {
        "version": 1,
        "floor": partial(_floor, form),
        "tolerance": Tolerance(rtol=units(float32=2.0, half=1.5), atol=underflow(), scale=packed_scale),
        "static": frozenset({"n", "k", "group_size", "dtype"}),
        "dynamic": frozenset({"m"}),
        "kinds": KINDS,
        "check": partial(check_packed, form),
        "weights": weights,
        "independent": frozenset({"qweight"}),
    }
    forward = Op(
        name=name,
        schema=f"{name}(Tensor a, {WEIGHT}, Tensor? bias=None) -> Tensor y",
        reference=packed_gemm_reference,
        fake=RowMajor(lambda a, qweight, *_: [((*a.shape[:-1], qweight.shape[1]), a.dtype)]),
        problem=partial(_problem, form),
        inputs=partial(packed_inputs, form),
        choices={**choices, "bias": (False, True)},
        examples=packed_examples(choices, bias=True),
        flatten=partial(packed_flatten, form, ("a",), name),
        packed=Packed("w", PackedWeight, PARTS),
        backward=Backward(f"{name}_backward", ("qweight", "scales", "zeros", "g_idx")),
        **shared,
    )
    backward = Op(
        name=f"{name}_backward",
        schema=f"{name}_backward(Tensor grad_y, {WEIGHT}, bool need_a=True, bool need_bias=True) "
        "-> (Tensor grad_a, Tensor grad_bias)",
        reference=packed_gemm_backward_reference,
        fake=RowMajor(_gradients),
        problem=partial(_backward_problem, form),
        inputs=partial(packed_inputs, form, backward=True),
        choices=choices,
        examples=packed_examples(choices, bias=False),
        tolerances={"grad_bias": Tolerance(units(float32=2.0, half=1.1), underflow(), _bias_scale)},
        **shared,
    )
    return forward, backward


def _gradients(grad_y: Any, *rest: Any) -> list[tuple[Any, torch.dtype]]:
    _, scales, _, _, _, _, k, _, need_a, need_bias = rest
    grad_a = (*grad_y.shape[:-1], k) if need_a else (0,)
    return [(grad_a, grad_y.dtype), ((scales.shape[1],) if need_bias else (0,), grad_y.dtype)]


def packed_flatten(
    form: Format, first: tuple[str, ...], name: str, *args: Any, **attributes: Any
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """A call ``(*first, w, bias=None)`` as the schema's arguments; a call with the schema's arguments is unchanged."""
    if len(args) > len(first) + 2 or "qweight" in attributes:
        return args, attributes
    given = arguments_by_name(name, (*first, "w"), ("bias",), args, attributes)
    w = given["w"]
    if not isinstance(w, PackedWeight):
        refuse_type(name, "w", w, "a PackedWeight", f"w = registry.quantize(weight, {form.text})")
    parts = (w.qweight, w.scales, w.zeros, w.g_idx, w.bits, w.group_size, w.shape[1], w.layout)
    return (*(given[each] for each in first), *parts, given.get("bias")), {}


def _problem(form: Format, arguments: Arguments) -> Mapping[str, Value]:
    a = float_tensor(arguments, "a", FLOATS)
    dims = _dims_beside(form, arguments, "a", a)
    if not a.shape or a.shape[-1] != dims["k"]:
        raise InvalidArgumentError(
            f"{arguments.op}: a has shape {shape_text(a.shape)} but w has K={dims['k']}",
            hint=f"expected a of shape [..., {dims['k']}]",
        )
    bias = arguments.optional_tensor("bias")
    if bias is not None:
        same_dtype(arguments.op, ("a", a), ("bias", bias))
        if bias.shape != (dims["n"],):
            raise InvalidArgumentError(
                f"{arguments.op}: bias has shape {shape_text(bias.shape)}", hint=f"expected [{dims['n']}]"
            )
    return {"m": math.prod(a.shape[:-1]), **dims, "bias": bias is not None}


def _backward_problem(form: Format, arguments: Arguments) -> Mapping[str, Value]:
    grad_y = float_tensor(arguments, "grad_y", FLOATS)
    dims = _dims_beside(form, arguments, "grad_y", grad_y)
    if not grad_y.shape or grad_y.shape[-1] != dims["n"]:
        raise InvalidArgumentError(
            f"{arguments.op}: grad_y has shape {shape_text(grad_y.shape)} but w has N={dims['n']}",
            hint=f"expected grad_y of shape [..., {dims['n']}]",
        )
    return {"m": math.prod(grad_y.shape[:-1]), **dims}


def _dims_beside(form: Format, arguments: Arguments, name: str, like: TensorSpec) -> dict[str, Value]:
    """The dimensions by the weight, whose scales must have the dtype of ``like``, the argument ``name``."""
    dims, wanted = weight_dims(form, arguments), dtype_name(like.dtype)
    if dims["dtype"] != wanted:
        raise InvalidArgumentError(
            f"{arguments.op}: {name} is {wanted} but the scales of w are {dims['dtype']}",
            hint=f"use w.to(dtype=torch.{wanted})",
        )
    return dims


def weight_dims(form: Format, arguments: Arguments) -> dict[str, Value]:
    """The dimensions by the weight; dtype is the scales'. Raises InvalidArgumentError for another format."""
    op, layout = arguments.op, arguments.text("layout")
    qweight, scales = arguments.tensor("qweight"), arguments.tensor("scales")
    zeros, g_idx = arguments.optional_tensor("zeros"), arguments.optional_tensor("g_idx")
    k, group_size, bits = arguments.integer("k"), arguments.integer("group_size"), arguments.integer("bits")
    check_format(op, bits, group_size, k, layout)
    form.check(op, bits, layout)
    if len(qweight.shape) != 2:
        raise InvalidArgumentError(f"{op}: qweight has shape {shape_text(qweight.shape)}, expected [words of K, N]")
    n = qweight.shape[1]
    check_parts(op, qweight, scales, zeros, group_size, (n, k), bits=bits, layout=layout, g_idx=g_idx)
    dims: dict[str, Value] = {"n": n, "k": k, "group_size": group_size, "dtype": dtype_name(scales.dtype)}
    return dims | {"zeros": zero_kind(zeros), "act_order": layout == ACT_ORDER}


def check_packed(form: Format, problem: Problem) -> None:
    positive(problem, "m", "n", "k", "group_size")
    float_dtype(problem, FLOATS)
    check_format(problem.op, form.bits, problem.group_size, problem.k, form.layout(problem.act_order))
    if problem.dtype == "float32" and problem.zeros == "integer":
        raise InvalidArgumentError(
            f"{problem.op}: zeros 'integer' beside float32 scales", hint="float32 zero points are any numbers: 'float'"
        )


def _floor(form: Format, problem: Problem) -> Floor:
    m, n, k = problem.m, problem.n, problem.k
    activations = (m * k + m * n) * problem.torch_dtype.itemsize
    return Floor(bytes=activations + weight_bytes(form.bits, problem), flop=2 * m * n * k)


def weight_bytes(bits: int, problem: Problem) -> int:
    """Bytes of words, scales and zero points."""
    n, k, itemsize = problem.n, problem.k, problem.torch_dtype.itemsize
    per_group = itemsize + {"none": 0, "integer": itemsize, "float": 4}[problem.zeros]
    return int(4 * words(k, bits) * n + per_group * n * groups(k, problem.group_size))


def packed_scale(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    """Relative to each output, and to its row's root mean square: a sum of terms that cancel.

    A weight rounded to half precision before the product, as every dequantise-then-multiply does, errs by 0.4 to 0.8
    roundings of the row's rms: 5 in the worst of 200 million outputs. In float32 the terms of a group with a large
    scale err by more than the row's rms suggests.
    """
    rms = reference.square().mean(-1, keepdim=True).sqrt_()
    summed = problem.n if problem.op.endswith("_backward") else problem.k
    return reference.abs() + rms * (4 + fp32_weight(problem) * 4 * math.sqrt(summed))


def _bias_scale(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    """Relative to each sum, and to their root mean square: a sum over rows whose terms cancel."""
    rms = reference.square().mean(-1, keepdim=True).sqrt_()
    return reference.abs() + rms * (1.5 + fp32_weight(problem) * (32 + math.sqrt(problem.m)))


def packed_examples(choices: Mapping[str, tuple[Value, ...]], *, bias: bool) -> tuple[Mapping[str, Value], ...]:
    """Small problems, most sizes odd: every kind of zero points and order, K no multiple of groups and words."""
    shapes = ((1, 64, 128, 128), (3, 33, 256, 64), (17, 128, 200, 32), (5, 72, 136, 136), (66, 130, 256, 16))
    found: list[Mapping[str, Value]] = []
    for dtype in map(dtype_name, FLOATS):
        for place, (m, n, k, group_size) in enumerate(shapes):
            zeros = choices["zeros"][place % len(choices["zeros"])]
            dims: dict[str, Value] = {"m": m, "n": n, "k": k, "group_size": group_size, "dtype": dtype}
            dims["zeros"] = "float" if (dtype, zeros) == ("float32", "integer") else zeros
            dims["act_order"] = place in (1, 2) and True in choices["act_order"]
            found.append({**dims, "bias": place % 2 == 1} if bias else dims)
    return tuple(found)


GEMM_INT8, GEMM_INT8_BACKWARD = packed_gemm_ops("gemm_int8", 8)
GEMM_INT2, GEMM_INT2_BACKWARD = packed_gemm_ops("gemm_int2", 2)
GEMM_INT1, GEMM_INT1_BACKWARD = packed_gemm_ops("gemm_int1", 1)
GEMM_W4A16, GEMM_W4A16_BACKWARD = packed_gemm_ops("gemm_w4a16", 4)
GEMM_NF4, GEMM_NF4_BACKWARD = packed_gemm_ops("gemm_nf4", 4, "nf4")
