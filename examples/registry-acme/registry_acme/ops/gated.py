"""``acme::gated``: half of each row gates the other; the activation is one of several."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from registry import Arguments, Backward, Floor, InvalidArgumentError, Op, Problem, Value
from registry.problem import dtype_name

from .rounding import of_a_sum

ACTIVATIONS = {"silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu, "relu": torch.relu}


def reference(x: torch.Tensor, activation: str = "silu") -> torch.Tensor:
    """``activation(x[..., :d]) * x[..., d:]``: ``[..., 2 d]`` to ``[..., d]``."""
    gate, value = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, -1)
    return (ACTIVATIONS[activation](gate) * value).to(x.dtype)


def dims_of(arguments: Arguments) -> dict[str, Value]:
    """rows, and cols of the output."""
    x = arguments.tensor("x")
    if not x.shape or x.shape[-1] % 2:
        raise InvalidArgumentError(f"{arguments.op}: x is {x.shape}", hint="expected an even number of columns")
    dims: dict[str, Value] = {"rows": math.prod(x.shape[:-1]), "cols": x.shape[-1] // 2, "dtype": dtype_name(x.dtype)}
    return {**dims, "activation": arguments.text("activation")}


def inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    """Noise."""
    shape, device = (problem.rows, 2 * problem.cols), generator.device
    x = torch.randn(shape, dtype=problem.torch_dtype, device=device, generator=generator)
    return x, problem.activation


def floor(problem: Problem) -> Floor:
    """Three numbers an output."""
    elements = problem.rows * problem.cols
    return Floor(bytes=3 * elements * problem.torch_dtype.itemsize, flop=5 * elements)


def scale(problem: Problem, expected: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    """The product of both halves of x: where gelu is near 0 its relative error is larger than that of its argument."""
    gate, value = values["x"].double().chunk(2, -1)
    return expected.abs() + (gate * value).abs()


GATED = Op(
    name="acme::gated",
    schema="acme::gated(Tensor x, str activation='silu') -> Tensor y",
    version=1,
    reference=reference,
    problem=dims_of,
    inputs=inputs,
    floor=floor,
    tolerance=replace(of_a_sum(4.0, lambda problem: 1), scale=scale),
    static=frozenset({"cols", "dtype"}),
    dynamic=frozenset({"rows"}),
    choices={"activation": tuple(ACTIVATIONS)},
    examples=tuple(
        {"rows": 5, "cols": 33, "dtype": dtype, "activation": activation}
        for dtype in ("float32", "bfloat16")
        for activation in ACTIVATIONS
    ),
    backward=Backward.reference(inline=True),  # it reads no data: torch.compile may fuse it
)
