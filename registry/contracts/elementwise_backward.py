"""The gradients of square and gelu: elementwise in the gradient and the input."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..contract import Tolerance
from ..problem import Problem
from .elementwise import GELU, KINDS, SQUARE, filled, inputs_at, magnitude
from .families import after_gradient, elementwise_op
from .rounding import fp32_error, fp32_weight, underflow, units


def square_backward_reference(grad_y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """``2 * x * grad_y``, any shape; halves in fp32, rounded once."""
    accumulator = torch.promote_types(x.dtype, torch.float32)
    # the product first: 2 * x may overflow where the gradient is small
    return (grad_y.to(accumulator) * x.to(accumulator) * 2.0).to(x.dtype)


def gelu_backward_reference(grad_y: torch.Tensor, x: torch.Tensor, approximate: str = "tanh") -> torch.Tensor:
    """``grad_y * (Phi(x) + x * Phi'(x))``, Phi the normal distribution or its tanh approximation; halves in fp32."""
    accumulator = torch.promote_types(x.dtype, torch.float32)
    wide = x.to(accumulator)
    slope = _tanh_slope(wide) if approximate == "tanh" else _normal_slope(wide)
    return (grad_y.to(accumulator) * slope).to(x.dtype)


def _normal_slope(x: torch.Tensor) -> torch.Tensor:
    density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return 0.5 * torch.erfc(x * -math.sqrt(0.5)) + x * density


def _tanh_slope(x: torch.Tensor) -> torch.Tensor:
    """The derivative of ``0.5 x (1 + tanh(u))``, by ``x * sigmoid(2 u)``, which stays precise where tanh nears -1."""
    root = math.sqrt(8 / math.pi)
    twice_u = root * (x + 0.044715 * x * x * x)
    below, above = torch.sigmoid(twice_u), torch.sigmoid(-twice_u)
    return below + x * below * above * (root * (1 + 3 * 0.044715 * x * x))


def _gelu_inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    # the slope is absolutely right to fp32's precision, so the gradient that multiplies it stays near 1
    level = "normal" if kind == "outliers" else kind
    x = filled(problem, kind, generator, 1.5)
    return filled(problem, level, generator, 0.25, reverse=True), x, problem.approximate


def _gelu_magnitude(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    # 32 roundings: the argument's polynomial, an exponential or two, the slope's products
    return reference.abs() * (1 + 32 * fp32_weight(problem))


SQUARE_BACKWARD = elementwise_op(
    "square_backward(Tensor grad_y, Tensor x) -> Tensor grad_x",
    square_backward_reference,
    flop=2,
    problem=after_gradient("y", "x", SQUARE.problem),
    # reversed: the largest numbers meet the smallest, and 2 * x overflows where the gradient does not
    inputs=inputs_at(0.25, 1.5),
    # what is lost below the normal numbers is doubled where the product is rounded before
    tolerance=Tolerance(rtol=units(float32=1.01, half=1.01), atol=underflow(2), scale=magnitude),
    kinds=KINDS,
)

GELU_BACKWARD = elementwise_op(
    'gelu_backward(Tensor grad_y, Tensor x, str approximate="tanh") -> Tensor grad_x',
    gelu_backward_reference,
    flop=20,
    problem=after_gradient("y", "x", GELU.problem),
    inputs=_gelu_inputs,
    # The slope is 0 near x = -0.75 and below -8, where its two terms cancel. 1 - tanh(u)**2 with tanh in fp32 errs by
    # 2**-24, which x * u' makes 1e-6, and gradients are up to 6.
    tolerance=Tolerance(rtol=units(float32=2.0, half=1.05), atol=fp32_error(6e-6, lost=6), scale=_gelu_magnitude),
    choices=GELU.choices,
    kinds=KINDS,
)
