"""scaled_mm: a product of float8 or int8 operands with float32 scales, as quantize_per_token makes them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from ..contract import Backward, Floor, Op, RowMajor, Tolerance
from ..errors import InvalidArgumentError
from ..problem import Arguments, Problem, TensorSpec, Value, check_choice, dtype_name
from .checks import positive, same_dtype, shape_text
from .rounding import FLOAT32_UNIT, underflow, unit_roundoff, units
from .scaled_mm_inputs import BLOCK, KINDS, scale_shapes, scaled_inputs

DTYPES = ("float8_e4m3fn", "int8")
SCALES = ("tensor", "row", "block")
OUT_DTYPES = tuple(dtype_name(dtype) for dtype in (torch.bfloat16, torch.float16, torch.float32))
LONGEST_INT8 = 2**17 - 1
"""The greatest k of int8 operands: an int32 holds any sum of so many products."""
QUANTISE_BOTH = "quantise both to one dtype, e.g. by quantize_per_token: a conversion of levels loses their scales"
FEW_ROUNDINGS = 4.0
"""Roundings of float32 behind the sum of a product with scales of rows: of the sum, of two scales, and of a bias."""

_LOST = 2.0**-9
"""Allowed error, as a part of a row's root mean square: Hopper's tensor cores cut float8 products to 13 bits below the
largest before the sum in fp32, and lose 2**-10 to 2**-11 in the worst of 1000 outputs. fp16 sums lose twice as much."""


def scaled_mm_reference(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: str = "bfloat16",
) -> torch.Tensor:
    """``(a * scale_a) @ (b * scale_b).T + bias``: ``[..., k]`` and ``[n, k]`` to ``[..., n]`` in ``out_dtype``.

    Scales: one number each; ``[..., 1]`` and ``[n, 1]``; or one for each 128 of a row of a, ``[..., ceil(k / 128)]``,
    and for each 128 by 128 of b, ``[ceil(n / 128), ceil(k / 128)]``, as DeepSeek-V3 has them. Products of int8 are
    summed exactly, of float8 in float32; one rounding to ``out_dtype`` after the bias.
    """
    exact = torch.float64 if a.dtype == torch.int8 else torch.promote_types(scale_a.dtype, torch.float32)
    if scale_b.numel() > 1 and scale_b.shape != (b.shape[0], 1):
        left, right = a.to(exact) * _along(scale_a, a.shape[-1], -1), b.to(exact)
        right = right * _along(_along(scale_b, b.shape[1], 1), b.shape[0], 0)
        y = torch.nn.functional.linear(left, right)
    else:
        y = torch.nn.functional.linear(a.to(exact), b.to(exact)) * scale_a * scale_b.reshape(-1)
    if bias is not None:
        y = y + bias
    return y.to(torch.float64 if scale_a.dtype == torch.float64 else getattr(torch, out_dtype)).contiguous()


def _along(scales: torch.Tensor, size: int, dim: int) -> torch.Tensor:
    """Each scale repeated 128 times along ``dim``, cut to ``size``."""
    return scales.repeat_interleave(BLOCK, dim).narrow(dim, 0, size)


def _problem(arguments: Arguments) -> Mapping[str, Value]:
    a, b, op = arguments.tensor("a"), arguments.tensor("b"), arguments.op
    if dtype_name(a.dtype) not in DTYPES:
        raise InvalidArgumentError(
            f"{op}: a is {dtype_name(a.dtype)}, expected float8_e4m3fn or int8",
            hint='a, scale_a = registry.call("quantize_per_token", x, "float8_e4m3fn")',
        )
    same_dtype(op, ("a", a), ("b", b), hint=QUANTISE_BOTH)
    if not a.shape or len(b.shape) != 2 or a.shape[-1] != b.shape[1] or not b.shape[1]:
        raise InvalidArgumentError(
            f"{op}: a is {shape_text(a.shape)} and b is {shape_text(b.shape)}",
            hint="expected a of shape [..., k] and b of shape [n, k]",
        )
    out_dtype = arguments.text("out_dtype")
    check_choice(op, "out_dtype", out_dtype, OUT_DTYPES)
    n, k = b.shape
    check_length(op, dtype_name(a.dtype), k)
    return {
        "m": math.prod(a.shape[:-1]),
        "n": n,
        "k": k,
        "scales": _kind(arguments, a, n),
        "bias": _has_bias(arguments, n, out_dtype),
        "out_dtype": out_dtype,
        "dtype": dtype_name(a.dtype),
    }


def _kind(arguments: Arguments, a: TensorSpec, n: int) -> str:
    """The name in ``SCALES`` of the two scales' kind. Raises InvalidArgumentError if they have none, or two kinds."""
    given = arguments.tensor("scale_a"), arguments.tensor("scale_b")
    for name, scale in zip(("scale_a", "scale_b"), given, strict=True):
        if scale.dtype != torch.float32:
            raise InvalidArgumentError(
                f"{arguments.op}: {name} is {dtype_name(scale.dtype)}, expected float32", hint=f"{name}.float()"
            )
    shapes = given[0].shape, given[1].shape
    if all(shape in ((), (1,)) for shape in shapes):
        return "tensor"
    for kind in ("row", "block"):
        if shapes == scale_shapes(kind, a.shape[:-1], n, a.shape[-1]):
            return kind
    wanted = [" and ".join(map(_shown, scale_shapes(kind, a.shape[:-1], n, a.shape[-1]))) for kind in SCALES]
    raise InvalidArgumentError(
        f"{arguments.op}: scale_a is {shape_text(shapes[0])} and scale_b is {shape_text(shapes[1])}",
        hint=f"expected {wanted[0]}; or one a row of a and b, {wanted[1]}; or one a block of 128, {wanted[2]}",
    )


def _shown(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _has_bias(arguments: Arguments, n: int, out_dtype: str) -> bool:
    bias = arguments.optional_tensor("bias")
    if bias is None:
        return False
    if bias.shape != (n,) or dtype_name(bias.dtype) != out_dtype:
        raise InvalidArgumentError(
            f"{arguments.op}: bias is {dtype_name(bias.dtype)} of shape {shape_text(bias.shape)}",
            hint=f"expected {out_dtype}, as the output, of shape [{n}]",
        )
    return True


def check_length(op: str, dtype: str, k: int) -> None:
    """Raise InvalidArgumentError for products of int8 of which an int32 may not hold the sum."""
    if dtype == "int8" and k > LONGEST_INT8:
        raise InvalidArgumentError(
            f"{op}: k={k} products of int8 may not fit in int32", hint=f"expected at most {LONGEST_INT8}"
        )


def _check(problem: Problem) -> None:
    positive(problem, "m", "n", "k")
    check_length(problem.op, problem.dtype, problem.k)


def _floor(problem: Problem) -> Floor:
    m, n, k, itemsize = problem.m, problem.n, problem.k, getattr(torch, problem.out_dtype).itemsize
    scales = sum(math.prod(shape) for shape in scale_shapes(problem.scales, (m,), n, k))
    moved = m * k + n * k + 4 * scales + itemsize * (m * n + (n if problem.bias else 0))
    return Floor(bytes=moved, flop=2 * m * n * k)


def _scale(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    """Blocks may be dequantised first: as many roundings as terms."""
    return product_scale(problem, reference, FEW_ROUNDINGS if problem.scales != "block" else 8 + math.sqrt(problem.k))


def product_scale(problem: Problem, reference: torch.Tensor, roundings: float) -> torch.Tensor:
    """The tolerance's scale of a product of levels, after which float32 rounds ``roundings`` times.

    Relative to each output, and to its row's root mean square, since terms, and a bias, may cancel. Sums of int8 are
    exact.
    """
    unit = unit_roundoff(getattr(torch, problem.out_dtype))
    rms = reference.square().mean(-1, keepdim=True).sqrt_()
    lost = max(_LOST if problem.dtype != "int8" else 0.0, roundings * FLOAT32_UNIT)
    return reference.abs() + (reference.abs() + rms) * (lost / unit)


def _examples() -> tuple[dict[str, Value], ...]:
    shapes = ((1, 64, 128, "row"), (3, 33, 200, "block"), (17, 128, 96, "tensor"), (5, 130, 300, "block"))
    return tuple(
        {"m": m, "n": n, "k": k, "scales": scales, "bias": place % 2 == 1, "out_dtype": out_dtype, "dtype": dtype}
        for step, dtype in enumerate(DTYPES)
        for place, (m, n, k, scales) in enumerate((*shapes, (33, 72, 257, "row"), (66, 257, 513, "block")))
        for out_dtype in (OUT_DTYPES[(place + step) % 3],)
    )


SCALED_MM = Op(
    name="scaled_mm",
    schema=(
        "scaled_mm(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias=None, "
        'str out_dtype="bfloat16") -> Tensor y'
    ),
    version=1,
    reference=scaled_mm_reference,
    fake=RowMajor(lambda a, b, *rest: [((*a.shape[:-1], b.shape[0]), getattr(torch, rest[-1]))]),
    problem=_problem,
    inputs=scaled_inputs,
    floor=_floor,
    tolerance=Tolerance(rtol=units(float32=2.0, half=1.5), atol=underflow(), scale=_scale),
    static=frozenset({"n", "k"}),
    dynamic=frozenset({"m"}),
    choices={"dtype": DTYPES, "scales": SCALES, "out_dtype": OUT_DTYPES, "bias": (False, True)},
    kinds=KINDS,
    examples=_examples(),
    check=_check,
    backward=Backward.none(),
    weights=frozenset({"b", "scale_b", "bias"}),
    independent=frozenset({"a", "b"}),
)
