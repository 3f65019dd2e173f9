"""softmax over one dimension.

It takes float32, float16, bfloat16 and float64. Not float8: without a scale most of a long row would be 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ..contract import Backward, Tolerance, octave
from ..problem import Arguments, Problem, Value, dtype_name
from . import fills
from .checks import AS_FIRST, check_dim, float_tensor, normalised_dim
from .families import rows_op
from .forms import softmax_forms
from .rounding import fp32_weight, underflow, units

KINDS = ("normal", "outliers", "spike_last", "constant", "masked")


def softmax_reference(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """``exp(x - max) / sum(exp(x - max))`` along ``dim``; halves in fp32, rounded once. Row-major output."""
    check_dim("softmax", dim, x.dim())
    accumulator = torch.promote_types(x.dtype, torch.float32)
    return torch.softmax(x, dim, dtype=accumulator).to(x.dtype).contiguous()


def softmax_problem(arguments: Arguments, name: str = "x") -> Mapping[str, Value]:
    """Dimensions of tensor ``name`` and ``dim``, forward and backward."""
    x = float_tensor(arguments, name)
    dim = normalised_dim(arguments.op, arguments.integer("dim"), x, name)
    shape = x.shape or (1,)
    rows = shape[1 - dim] if len(shape) == 2 else math.prod((*shape[:dim], *shape[dim + 1 :]))
    return {"rows": rows, "cols": shape[dim], "dtype": dtype_name(x.dtype)}


def rows_last(arguments: Arguments) -> Arguments:
    """The arguments with the reduced dimension last."""
    dim = arguments.integer("dim")
    if dim == -1:
        return arguments
    return arguments.mapped(lambda spec: spec.moved(dim, -1) if spec.shape else spec)


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    shape, dtype = (problem.rows, problem.cols), problem.torch_dtype
    if kind == "constant":
        # exp(-120) is 0 in fp32: a kernel that does not subtract the maximum divides 0 by 0
        return fills.constant(shape, dtype, generator, -120.0), -1
    x = fills.normal(shape, dtype, generator)
    if kind == "outliers":
        # exp(200) overflows fp32
        fills.plant_outliers(x, 200.0, generator)
    elif kind == "spike_last":
        x[:, -1:] = 20.0
    elif kind == "masked":
        mask_front(x, generator)
        # NaN and infinity make their whole row NaN; if the maximum drops a NaN, the sum must not
        fills.plant_in_rows(x, (torch.nan, torch.inf), generator)
    return x, -1


def mask_front(x: torch.Tensor, generator: torch.Generator) -> None:
    """Let each row begin with a random number of -inf, like attention scores with left padding; the last stays finite.

    A blocked kernel's first block may have the maximum -inf, and must not compute -inf - -inf.
    """
    rows, cols = x.shape
    starts = torch.randint(cols, (rows, 1), device=x.device, generator=generator)
    starts[::3] = cols - 1
    x.masked_fill_(torch.arange(cols, device=x.device) < starts, -torch.inf)


def _scale(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    """Relative to each output: 8 roundings, ``|x - logsumexp|`` of the exponent's, and those of the sum.

    A serial fp32 sum of random terms errs by about ``0.3 sqrt(cols)`` roundings.
    """
    weight = fp32_weight(problem)
    magnitude = reference.abs()
    return (
        magnitude * (1 + weight * (8 + math.sqrt(problem.cols))) + 2 * weight * torch.xlogy(magnitude, magnitude).abs_()
    )


SOFTMAX = rows_op(
    "softmax(Tensor x, int dim=-1) -> Tensor y",
    softmax_reference,
    flop=5,
    fake=AS_FIRST,
    problem=softmax_problem,
    inputs=_inputs,
    tolerance=Tolerance(rtol=units(float32=2.0, half=1.1), atol=underflow(), scale=_scale),
    kinds=KINDS,
    view=rows_last,
    forms=softmax_forms,
    backward=Backward(op="softmax_backward", saved=("y",)),
    transfers={"cols": octave},  # attention scores of a growing cache have one more column with every token
)
