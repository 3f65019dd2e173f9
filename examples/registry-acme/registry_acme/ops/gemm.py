"""``acme::gemm``: a product with a weight that stays from call to call, and ``acme::fp8_gemm`` with scales."""

from __future__ import annotations

import math
from typing import Any

import torch

from registry import Arguments, Backward, Floor, InvalidArgumentError, Op, Problem, Value, gemm_op
from registry.problem import dtype_name

from .rounding import of_a_sum

FP8 = ("float8_e4m3fn", "float8_e5m2")
SCALES = ("tensor", "row")
"""One scale for each operand, or one for each row of ``a`` and of ``weight``."""


def reference(a: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``a @ weight.T + bias``: ``[..., k]`` times ``[n, k]``, accumulated in at least float32."""
    wide = torch.promote_types(a.dtype, torch.float32)
    y = a.to(wide) @ weight.to(wide).T
    return (y if bias is None else y + bias).to(a.dtype)


def fp8_reference(
    a: torch.Tensor, weight: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, out_dtype: str = "bfloat16"
) -> torch.Tensor:
    """``(a * scale_a) @ (weight * scale_b).T`` in ``out_dtype``: scales ``[]``, or ``[m, 1]`` and ``[n, 1]``."""
    wide = scale_a.dtype
    return ((a.to(wide) * scale_a) @ (weight.to(wide) * scale_b).T).to(getattr(torch, out_dtype))


def dims_of(arguments: Arguments) -> dict[str, Value]:
    """m, n, k and dtype."""
    a, weight = arguments.tensor("a"), arguments.tensor("weight")
    if not a.shape or len(weight.shape) != 2 or a.shape[-1] != weight.shape[1] or a.dtype != weight.dtype:
        raise InvalidArgumentError(
            f"{arguments.op}: a is {a.shape} of {a.dtype}, weight is {weight.shape} of {weight.dtype}",
            hint="expected [..., k] and [n, k] of one dtype",
        )
    m, (n, k) = math.prod(a.shape[:-1]), weight.shape
    return {"m": m, "n": n, "k": k, "dtype": dtype_name(a.dtype)}


def fp8_dims(arguments: Arguments) -> dict[str, Value]:
    """m, n, k, the dtypes on both sides and the kind of scales."""
    dims, scale_a, scale_b = dims_of(arguments), arguments.tensor("scale_a"), arguments.tensor("scale_b")
    shapes = {((), ()): "tensor", ((dims["m"], 1), (dims["n"], 1)): "row"}
    if (scale_a.shape, scale_b.shape) not in shapes or len(arguments.tensor("a").shape) != 2:
        raise InvalidArgumentError(
            f"{arguments.op}: scales are {scale_a.shape} and {scale_b.shape}",
            hint="expected [] twice, or [m, 1], [n, 1]",
        )
    return {**dims, "scales": shapes[scale_a.shape, scale_b.shape], "out_dtype": arguments.text("out_dtype")}


def fp8_inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    """Numbers that fp8 can hold; scales of neighbouring rows differ by a factor."""
    device = generator.device
    a = torch.randn(problem.m, problem.k, device=device, generator=generator)
    weight = torch.randn(problem.n, problem.k, device=device, generator=generator)
    if kind == "spike_last":
        a[:, -1:] = 4.0 * math.sqrt(problem.k)
    shape_a, shape_b = ((), ()) if problem.scales == "tensor" else ((problem.m, 1), (problem.n, 1))
    scale_a = torch.rand(shape_a, device=device, generator=generator) + 0.25
    scale_b = torch.rand(shape_b, device=device, generator=generator) + 0.25
    return a.to(problem.torch_dtype), weight.to(problem.torch_dtype), scale_a, scale_b, problem.out_dtype


def floor(problem: Problem) -> Floor:
    """Both operands read, the output written."""
    m, n, k = problem.m, problem.n, problem.k
    out = getattr(torch, problem.out_dtype).itemsize
    return Floor(bytes=(m * k + n * k) * problem.torch_dtype.itemsize + m * n * out, flop=2 * m * n * k)


SHAPES = ((5, 33, 70), (17, 8, 129))
GEMM = gemm_op(
    "acme::gemm(Tensor a, Tensor weight, Tensor? bias=None) -> Tensor y",
    reference,
    weights=frozenset({"weight", "bias"}),
    examples=tuple({"m": m, "n": n, "k": k, "dtype": dtype} for m, n, k in SHAPES for dtype in ("float32", "bfloat16")),
    backward=Backward.reference(),
)
FP8_GEMM = Op(
    name="acme::fp8_gemm",
    schema=(
        "acme::fp8_gemm(Tensor a, Tensor weight, Tensor scale_a, Tensor scale_b, str out_dtype='bfloat16') -> Tensor y"
    ),
    version=1,
    reference=fp8_reference,
    problem=fp8_dims,
    inputs=fp8_inputs,
    floor=floor,
    tolerance=of_a_sum(2.0, lambda problem: problem.k),
    static=frozenset({"n", "k", "dtype"}),
    dynamic=frozenset({"m"}),
    choices={"scales": SCALES, "out_dtype": ("bfloat16", "float16", "float32")},
    weights=frozenset({"weight", "scale_b"}),
    kinds=("normal", "spike_last"),
    examples=tuple(
        {"m": m, "n": n, "k": k, "dtype": dtype, "scales": scales, "out_dtype": out_dtype}
        for (m, n, k), scales, out_dtype in zip(SHAPES, SCALES, ("bfloat16", "float32"), strict=True)
        for dtype in FP8
    ),
)
