"""silu_and_mul and gelu_and_mul, the gated activations of a decoder's MLP, and their gradients.

The first half of ``[..., 2 cols]`` is activated and multiplied by the second half, as in vLLM and Liger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from ...contract import Backward, Floor, RowMajor, Tolerance
from ...errors import InvalidArgumentError
from ...problem import Arguments, Problem, Value, dtype_name
from .. import fills
from ..checks import float_tensor, same_dtype, shape_text
from ..elementwise import APPROXIMATIONS
from ..elementwise_backward import gelu_backward_reference
from ..families import rows_op
from ..rounding import fp32_error, fp32_weight, underflow, units

KINDS = ("normal", "outliers", "spike_last", "constant", "special")


def silu_and_mul_reference(x: torch.Tensor) -> torch.Tensor:
    """``silu(x[..., :d]) * x[..., d:]`` of ``[..., 2 d]`` (Shazeer, 2020); halves in fp32, rounded once."""
    gate, up = _halves(x)
    return (torch.nn.functional.silu(gate) * up).to(x.dtype).contiguous()


def gelu_and_mul_reference(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """``gelu(x[..., :d]) * x[..., d:]`` of ``[..., 2 d]``; halves in fp32, rounded once."""
    gate, up = _halves(x)
    return (torch.nn.functional.gelu(gate, approximate=approximate) * up).to(x.dtype).contiguous()


def silu_and_mul_backward_reference(grad_y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The gradient ``[..., 2 d]`` of ``silu_and_mul`` from that of its result ``[..., d]``; halves in fp32."""
    gate, up = _halves(x)
    gradient = grad_y.to(gate.dtype)
    share = torch.sigmoid(gate)
    slope = share * (1 + gate * torch.sigmoid(-gate))
    return torch.cat((gradient * up * slope, gradient * gate * share), -1).to(x.dtype)


def gelu_and_mul_backward_reference(grad_y: torch.Tensor, x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """The gradient ``[..., 2 d]`` of ``gelu_and_mul`` from that of its result ``[..., d]``; halves in fp32."""
    gate, up = _halves(x)
    gradient = grad_y.to(gate.dtype)
    of_gate = gelu_backward_reference(gradient * up, gate, approximate)
    of_up = gradient * torch.nn.functional.gelu(gate, approximate=approximate)
    return torch.cat((of_gate, of_up), -1).to(x.dtype)


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    gate, up = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, -1)
    return gate, up


def _problem(arguments: Arguments) -> Mapping[str, Value]:
    x = float_tensor(arguments, "x")
    if not x.shape or x.shape[-1] % 2:
        raise InvalidArgumentError(
            f"{arguments.op}: x is {shape_text(x.shape)}, whose last dimension is not two halves",
            hint="expected [..., 2 d]: what is activated, then what it is multiplied by",
        )
    rows, cols = math.prod(x.shape[:-1]), x.shape[-1] // 2
    dims: dict[str, Value] = {"rows": rows, "cols": cols, "dtype": dtype_name(x.dtype)}
    return dims | ({"approximate": arguments.text("approximate")} if arguments.op.startswith("gelu") else {})


def _backward_problem(arguments: Arguments) -> Mapping[str, Value]:
    dims = _problem(arguments)
    x, gradient = arguments.tensor("x"), arguments.tensor("grad_y")
    wanted = (*x.shape[:-1], x.shape[-1] // 2)
    if tuple(gradient.shape) != wanted:
        raise InvalidArgumentError(
            f"{arguments.op}: grad_y is {shape_text(gradient.shape)} but x is {shape_text(x.shape)}",
            hint=f"expected a gradient of shape {shape_text(wanted)}, half as wide as x",
        )
    same_dtype(arguments.op, ("x", x), ("grad_y", gradient))
    return dims


def _inputs(backward: bool, problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    shape, dtype = (problem.rows, problem.cols), problem.torch_dtype
    if kind == "constant":
        halves = [fills.constant(shape, dtype, generator, level) for level in (1.5, 0.25)]
    else:
        halves = [fills.normal(shape, dtype, generator) for _ in range(2)]
    gate, up = halves
    if kind == "outliers":
        fills.plant_outliers(gate, 20.0, generator)
    elif kind == "spike_last":
        gate[:, -1:], up[:, -1:] = 20.0, 8.0
    elif kind == "special":
        fills.plant_special(gate, [torch.nan, 0.0, -0.0, -60.0, 60.0])
    tail = (problem.approximate,) if "approximate" in problem.dims else ()
    first = (fills.normal(shape, dtype, generator),) if backward else ()
    # not torch.cat, which imports the compiler for the meta tensors of planning
    x = torch.empty((problem.rows, 2 * problem.cols), dtype=dtype, device=generator.device)
    x[:, : problem.cols], x[:, problem.cols :] = gate, up
    return (*first, x, *tail)


def _floor(tensors: int, flop: int, problem: Problem) -> Floor:
    elements = problem.rows * problem.cols
    return Floor(tensors * elements * problem.torch_dtype.itemsize, flop * elements)


def _scale(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    """Relative to each output: 20 roundings for an exponential of up to 20, and 12 for the other operations."""
    return reference.abs() * (1 + 32 * fp32_weight(problem))


_FORWARD: Mapping[str, Any] = {
    "problem": _problem,
    "inputs": partial(_inputs, False),
    "floor": partial(_floor, 3, 6),
    "fake": RowMajor(lambda x, *_: [((*x.shape[:-1], x.shape[-1] // 2), x.dtype)]),
    "kinds": KINDS,
}
_BACKWARD: Mapping[str, Any] = {
    "problem": _backward_problem,
    "inputs": partial(_inputs, True),
    "floor": partial(_floor, 5, 16),
    "fake": RowMajor(lambda _, x, *__: [(x.shape, x.dtype)]),
    "kinds": KINDS,
    # Two roundings in half, as for the results. A slope is 0 near -1, where its terms cancel to fp32's precision,
    # times a gradient and a multiplier of up to 5 each, or a spike's 8.
    "tolerance": Tolerance(units(float32=2.0, half=2.1), fp32_error(6e-6, lost=16), _scale),
}
_APPROXIMATE = {"approximate": APPROXIMATIONS}

SILU_AND_MUL = rows_op(
    "silu_and_mul(Tensor x) -> Tensor y",
    silu_and_mul_reference,
    # two roundings to half: many models' own code rounds the activation before it multiplies
    tolerance=Tolerance(units(float32=2.0, half=2.1), underflow(16), _scale),
    backward=Backward(op="silu_and_mul_backward", saved=("x",)),
    **_FORWARD,
)

GELU_AND_MUL = rows_op(
    'gelu_and_mul(Tensor x, str approximate="none") -> Tensor y',
    gelu_and_mul_reference,
    # 1 + erf and 1 + tanh cancel for negative x, as in gelu, and what is lost is multiplied
    tolerance=Tolerance(units(float32=2.0, half=2.1), fp32_error(6e-6, lost=16), _scale),
    choices=_APPROXIMATE,
    backward=Backward(op="gelu_and_mul_backward", saved=("x",)),
    **_FORWARD,
)

SILU_AND_MUL_BACKWARD = rows_op(
    "silu_and_mul_backward(Tensor grad_y, Tensor x) -> Tensor grad_x", silu_and_mul_backward_reference, **_BACKWARD
)

GELU_AND_MUL_BACKWARD = rows_op(
    'gelu_and_mul_backward(Tensor grad_y, Tensor x, str approximate="none") -> Tensor grad_x',
    gelu_and_mul_backward_reference,
    choices=_APPROXIMATE,
    **_BACKWARD,
)
