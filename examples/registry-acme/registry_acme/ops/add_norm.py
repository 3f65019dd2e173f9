"""``acme::fused_add_rms_norm``, which returns nothing and writes to two of its arguments, as vLLM's does."""

from __future__ import annotations

import math
from typing import Any

import torch

from registry import Arguments, Floor, InvalidArgumentError, Op, Problem, Value
from registry.problem import dtype_name

from .rounding import of_a_sum


def reference(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> None:
    """``residual += x``, then ``x = residual / sqrt(mean(residual^2) + eps) * weight``; halves in float32."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32)) + residual
    residual.copy_(wide)
    x.copy_(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight)


def dims_of(arguments: Arguments) -> dict[str, Value]:
    """Rows, cols and one dtype for all three."""
    x, residual, weight = (arguments.tensor(name) for name in ("x", "residual", "weight"))
    if not x.shape or residual.shape != x.shape or weight.shape != x.shape[-1:]:
        raise InvalidArgumentError(
            f"{arguments.op}: x is {x.shape}, residual is {residual.shape}, weight is {weight.shape}",
            hint="expected [..., cols], [..., cols] and [cols]",
        )
    if len({x.dtype, residual.dtype, weight.dtype}) > 1:
        raise InvalidArgumentError(f"{arguments.op}: x, residual and weight have several dtypes")
    return {"rows": math.prod(x.shape[:-1]), "cols": x.shape[-1], "dtype": dtype_name(x.dtype)}


def inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    """Two activations and a weight about 1."""
    shape, dtype, device = (problem.rows, problem.cols), problem.torch_dtype, generator.device
    x, residual = (torch.randn(shape, dtype=dtype, device=device, generator=generator) for _ in range(2))
    if kind == "spike_last":
        residual[:, -1:] = 8.0 * math.sqrt(problem.cols)
    return x, residual, torch.rand(shape[1:], dtype=dtype, device=device, generator=generator) + 0.5, 1e-6


def floor(problem: Problem) -> Floor:
    """Both activations are read and written."""
    elements = problem.rows * problem.cols
    return Floor(bytes=(4 * elements + problem.cols) * problem.torch_dtype.itemsize, flop=5 * elements)


FUSED_ADD_RMS_NORM = Op(
    name="acme::fused_add_rms_norm",
    schema="acme::fused_add_rms_norm(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps=1e-6) -> ()",
    version=1,
    reference=reference,
    problem=dims_of,
    inputs=inputs,
    floor=floor,
    tolerance=of_a_sum(3.0, lambda problem: problem.cols),
    static=frozenset({"cols", "dtype"}),
    dynamic=frozenset({"rows"}),
    kinds=("normal", "spike_last"),
    examples=tuple(
        {"rows": rows, "cols": cols, "dtype": dtype}
        for dtype in ("float32", "bfloat16")
        for rows, cols in ((5, 33), (3, 257))
    ),
)
