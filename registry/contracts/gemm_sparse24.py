"""Activations times a 2:4 sparse weight, and the gradients by the activations and the bias.

The weight is frozen: it has no gradient. registry/sparse/layout.py describes its layout. If only pruned elements of the
weight multiply an activation, its NaN or infinity may or may not reach the result: sparse tensor cores skip the
products with 0 that a dense weight has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from ..contract import Backward, Floor, Op, Packed, RowMajor, Tolerance
from ..errors import InvalidArgumentError
from ..problem import Arguments, Problem, TensorSpec, Value, dtype_name
from ..sparse import CODES, Sparse24Weight, check_parts, dense, meta_words, pack_codes
from . import fills
from .checks import FLOATS, arguments_by_name, float_dtype, float_tensor, positive, refuse_type, same_dtype, shape_text
from .linear import KINDS, over_rows_scale, sum_scale
from .rounding import underflow, units

_NAME = "gemm_sparse24"
_WEIGHT = "Tensor values, Tensor meta, int k"


def gemm_sparse24_reference(
    x: torch.Tensor, values: torch.Tensor, meta: torch.Tensor, _k: int, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """``x @ W.T + bias``, ``[..., k]`` to ``[..., n]``; halves in fp32, rounded once."""
    accumulator = torch.promote_types(x.dtype, torch.float32)
    wide = None if bias is None else bias.to(accumulator)
    y = torch.nn.functional.linear(x.to(accumulator), dense(values.to(accumulator), meta), wide)
    return y.to(x.dtype).contiguous()


def gemm_sparse24_backward_reference(
    grad_y: torch.Tensor,
    values: torch.Tensor,
    meta: torch.Tensor,
    _k: int,
    need_x: bool = True,
    need_bias: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``grad_y @ W``, ``[..., k]``, and the sum of grad_y's rows, ``[n]``; an empty tensor if not needed."""
    accumulator = torch.promote_types(grad_y.dtype, torch.float32)
    wide = grad_y.to(accumulator)
    grad_x, grad_bias = grad_y.new_empty(0), grad_y.new_empty(0)
    if need_x:
        grad_x = (wide @ dense(values.to(accumulator), meta)).to(grad_y.dtype).contiguous()
    if need_bias:
        grad_bias = wide.reshape(-1, wide.shape[-1]).sum(0).to(grad_y.dtype)
    return grad_x, grad_bias


def _gradients(
    grad_y: Any, values: Any, _: Any, k: Any, need_x: bool = True, need_bias: bool = True
) -> list[tuple[Any, torch.dtype]]:
    grad_x = (*grad_y.shape[:-1], k) if need_x else (0,)
    return [(grad_x, grad_y.dtype), ((values.shape[0],) if need_bias else (0,), grad_y.dtype)]


def _flatten(*args: Any, **attributes: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """A call ``(x, w, bias=None)`` as the schema's arguments; a call with the schema's arguments is unchanged."""
    if len(args) > 3 or "values" in attributes:
        return args, attributes
    given = arguments_by_name(_NAME, ("x", "w"), ("bias",), args, attributes)
    w = given["w"]
    if not isinstance(w, Sparse24Weight):
        refuse_type(_NAME, "w", w, "a Sparse24Weight", "w = registry.sparsify24(weight)")
    return (given["x"], w.values, w.meta, w.shape[1], given.get("bias")), {}


def _problem(arguments: Arguments) -> Mapping[str, Value]:
    x = float_tensor(arguments, "x", FLOATS)
    n, k = _weight_shape(arguments, "x", x)
    _check_last(arguments.op, "x", x, ("K", k))
    bias = arguments.optional_tensor("bias")
    if bias is not None:
        same_dtype(arguments.op, ("x", x), ("bias", bias))
        if bias.shape != (n,):
            raise InvalidArgumentError(
                f"{arguments.op}: bias has shape {shape_text(bias.shape)}", hint=f"expected [{n}]"
            )
    return {"m": math.prod(x.shape[:-1]), "n": n, "k": k, "dtype": dtype_name(x.dtype), "bias": bias is not None}


def _backward_problem(arguments: Arguments) -> Mapping[str, Value]:
    grad_y = float_tensor(arguments, "grad_y", FLOATS)
    n, k = _weight_shape(arguments, "grad_y", grad_y)
    _check_last(arguments.op, "grad_y", grad_y, ("N", n))
    return {"m": math.prod(grad_y.shape[:-1]), "n": n, "k": k, "dtype": dtype_name(grad_y.dtype)}


def _weight_shape(arguments: Arguments, name: str, like: TensorSpec) -> tuple[int, int]:
    """N and K of the weight. Raises InvalidArgumentError unless its parts fit each other and the dtype of ``like``."""
    op, values, k = arguments.op, arguments.tensor("values"), arguments.integer("k")
    check_parts(op, values, arguments.tensor("meta"))
    n, half = values.shape
    if k != 2 * half:
        shown = shape_text(values.shape)
        raise InvalidArgumentError(f"{op}: k={k} but values is {shown}", hint=f"expected k={2 * half}")
    if values.dtype != like.dtype:
        raise InvalidArgumentError(
            f"{op}: {name} is {dtype_name(like.dtype)} but the values of w are {dtype_name(values.dtype)}",
            hint=f"use w.to(dtype=torch.{dtype_name(like.dtype)})",
        )
    return n, k


def _check_last(op: str, name: str, spec: TensorSpec, wanted: tuple[str, int]) -> None:
    if not spec.shape or spec.shape[-1] != wanted[1]:
        raise InvalidArgumentError(
            f"{op}: {name} has shape {shape_text(spec.shape)} but w has {wanted[0]}={wanted[1]}",
            hint=f"expected {name} of shape [..., {wanted[1]}]",
        )


def _check(problem: Problem) -> None:
    positive(problem, "m", "n", "k")
    float_dtype(problem, FLOATS)
    if problem.k % 4:
        raise InvalidArgumentError(f"{problem.op}: k={problem.k}", hint="expected a multiple of 4")


def _inputs(problem: Problem, kind: str, generator: torch.Generator, *, backward: bool = False) -> tuple[Any, ...]:
    m, n, k, dtype = problem.m, problem.n, problem.k, problem.torch_dtype
    summed = n if backward else k
    values = fills.normal((n, k // 2), dtype, generator).mul_((summed / 2) ** -0.5)
    codes = _codes(n, meta_words(k) * 8, generator)
    x = fills.normal((m, summed), dtype, generator)
    if kind == "constant":
        x = fills.constant((m, summed), dtype, generator, 0.5)
    elif kind == "outliers":
        fills.plant_outliers(x, 60.0, generator)
    elif kind == "spike_last":
        # 64 times as large as all the other elements together; every row of the weight keeps the last two
        x[:, -1:] = 8.0 * math.sqrt(summed)
        x[-1:] *= 4.0 if backward else 1.0
        codes[:, k // 4 - 1] = CODES[-1]
    weight = (values, pack_codes(codes), k)
    if backward:
        return x, *weight, True, True
    return x, *weight, fills.normal((n,), dtype, generator) if problem.bias else None


def _codes(n: int, groups: int, generator: torch.Generator) -> torch.Tensor:
    """Random places, also after K in the last word, which must not be read."""
    table = torch.tensor(CODES, dtype=torch.int32, device=generator.device)
    return table[torch.randint(len(CODES), (n, groups), device=generator.device, generator=generator)]


def _floor(problem: Problem) -> Floor:
    m, n, k, itemsize = problem.m, problem.n, problem.k, problem.torch_dtype.itemsize
    return Floor(bytes=(m * k + m * n + n * k // 2) * itemsize + 4 * n * meta_words(k), flop=m * n * k)


def _of_rows(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    summed = problem.n if problem.op.endswith("_backward") else problem.k // 2
    return sum_scale(problem, reference, reference.square().mean(-1, keepdim=True).sqrt_(), summed)


def _examples(*choices: str) -> tuple[Mapping[str, Value], ...]:
    """Small problems, most sizes odd: groups that do not fill a word, rows that do not fill a tile."""
    shapes = ((1, 64, 128), (5, 131, 140), (17, 128, 76), (66, 33, 260), (2, 17, 4))
    return tuple(
        {"m": m, "n": n, "k": k, "dtype": dtype_name(dtype), **dict.fromkeys(choices, place % 2 == 1)}
        for dtype in FLOATS
        for place, (m, n, k) in enumerate(shapes)
    )


_RTOL = units(float32=2.0, half=1.5)
_SHARED: dict[str, Any] = {
    "version": 1,
    "floor": _floor,
    "tolerance": Tolerance(_RTOL, underflow(), _of_rows),
    "static": frozenset({"n", "k", "dtype"}),
    "dynamic": frozenset({"m"}),
    "kinds": KINDS,
    "check": _check,
    "weights": frozenset({"values", "meta"}),
    "independent": frozenset({"meta"}),
}

GEMM_SPARSE24 = Op(
    name=_NAME,
    schema=f"{_NAME}(Tensor x, {_WEIGHT}, Tensor? bias=None) -> Tensor y",
    reference=gemm_sparse24_reference,
    fake=RowMajor(lambda x, values, *_: [((*x.shape[:-1], values.shape[0]), x.dtype)]),
    problem=_problem,
    inputs=_inputs,
    choices={"bias": (False, True)},
    examples=_examples("bias"),
    flatten=_flatten,
    packed=Packed("w", Sparse24Weight, {"values": "values", "meta": "meta", "k": "shape[1]"}),
    backward=Backward(f"{_NAME}_backward", ("values", "meta")),
    **_SHARED,
)

GEMM_SPARSE24_BACKWARD = Op(
    name=f"{_NAME}_backward",
    schema=f"{_NAME}_backward(Tensor grad_y, {_WEIGHT}, bool need_x=True, bool need_bias=True) "
    "-> (Tensor grad_x, Tensor grad_bias)",
    reference=gemm_sparse24_backward_reference,
    fake=RowMajor(_gradients),
    problem=_backward_problem,
    inputs=partial(_inputs, backward=True),
    examples=_examples(),
    tolerances={"grad_bias": Tolerance(_RTOL, underflow(), over_rows_scale)},
    **_SHARED,
)
