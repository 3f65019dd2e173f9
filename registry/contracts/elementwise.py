"""vector_add, square and gelu: one output element from the same element of each input.

They take float32, float16, bfloat16 and float64. Not float8, which torch does not add or multiply and which needs a
scale that these schemas do not have; not integers, which wrap around, so that a tolerance of roundings does not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..contract import Backward, RowMajor, Tolerance
from ..errors import InvalidArgumentError
from ..problem import Arguments, Problem, Value, dtype_name
from . import fills
from .checks import float_tensor, shape_text
from .families import elementwise_op
from .forms import add_forms
from .rounding import fp32_error, fp32_weight, underflow, units

APPROXIMATIONS = ("none", "tanh")
KINDS = ("normal", "outliers", "spike_last", "constant", "special")


def add_reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``x + y``, any shape; two dtypes are promoted as in torch, and the sum is computed in the promoted dtype."""
    return x + y


def square_reference(x: torch.Tensor) -> torch.Tensor:
    """``x * x``, any shape."""
    return x * x


def gelu_reference(x: torch.Tensor, approximate: str = "tanh") -> torch.Tensor:
    """``x * Phi(x)``, or its tanh approximation (Hendrycks and Gimpel, 2016); torch computes halves in fp32.

    The default is the approximation, as most language models have it; torch's own default is ``"none"``.
    """
    return torch.nn.functional.gelu(x, approximate=approximate)


def _add_problem(arguments: Arguments) -> Mapping[str, Value]:
    x, y = float_tensor(arguments, "x"), float_tensor(arguments, "y")
    if x.shape != y.shape:
        raise InvalidArgumentError(
            f"{arguments.op}: x is {shape_text(x.shape)} but y is {shape_text(y.shape)}",
            hint="shapes must be equal; torch.broadcast_tensors(x, y) makes them so",
        )
    return {"n": x.numel, "dtype": dtype_name(torch.promote_types(x.dtype, y.dtype))}


def filled(
    problem: Problem, kind: str, generator: torch.Generator, level: float, reverse: bool = False
) -> torch.Tensor:
    """A tensor ``[n]`` of inputs of that kind; ``level`` sets constants, ``reverse`` the order of special values."""
    shape, dtype = (problem.n,), problem.torch_dtype
    if kind == "constant":
        return fills.constant(shape, dtype, generator, level)
    x = fills.normal(shape, dtype, generator)
    if kind == "outliers":
        # 200: float16 squares stay finite; 1e6: a kernel that computes other dtypes through float16 overflows
        return fills.plant_outliers(x, 200.0 if dtype == torch.float16 else 1e6 * level, generator)
    if kind == "spike_last":
        x[-1:] = 100.0 * level
    if kind == "special":
        values = _special_values(problem)
        return fills.plant_special(x, values[::-1] if reverse else values)
    return x


def _special_values(problem: Problem) -> list[float]:
    finite = torch.finfo(problem.torch_dtype)
    values = [torch.nan, 0.0, -0.0, finite.tiny, -finite.tiny]
    if problem.op.startswith("gelu"):
        # none for gelu: torch's own on CPUs turns inf into nan and the largest numbers into inf
        return [*values, 6e4, -6e4]
    return [*values, finite.max, finite.min, torch.inf, -torch.inf]


def inputs_at(*levels: float) -> Callable[[Problem, str, torch.Generator], tuple[Any, ...]]:
    """The ``inputs`` of an elementwise op: a tensor per level; levels below 1 reverse the special values."""

    def inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
        tensors = [filled(problem, kind, generator, level, reverse=level < 1) for level in levels]
        return (*tensors, problem.approximate) if "approximate" in problem.dims else tuple(tensors)

    return inputs


def magnitude(_: Problem, reference: torch.Tensor) -> torch.Tensor:
    """Relative to each output."""
    return reference.abs()


def _gelu_magnitude(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    # 16 roundings: the argument's polynomial, tanh or erf, two products
    return reference.abs() * (1 + 16 * fp32_weight(problem))


# one rounding, and a little for the conversion to float64 and back
EXACT = Tolerance(rtol=units(float32=1.01, half=1.01), atol=underflow(), scale=magnitude)

# x * (1 + tanh(u)) cancels for negative x: fp32 tanh near -1 errs by 2**-24, which up to |x| = 8 makes 5e-7 absolute,
# and the erf of torch's vectorized kernels on CPUs by up to 6.7e-7: 1.16e-6 absolute at x = -3.46 (all of [-8, 0] was
# scanned). An approximate tanh (2**-11 relative, tanh.approx) misses it by far.
GELU_TOLERANCE = Tolerance(rtol=units(float32=2.0, half=1.05), atol=fp32_error(1.25e-6), scale=_gelu_magnitude)

VECTOR_ADD = elementwise_op(
    "vector_add(Tensor x, Tensor y) -> Tensor out",
    add_reference,
    flop=1,
    problem=_add_problem,
    fake=RowMajor(lambda x, y: [(x.shape, torch.promote_types(x.dtype, y.dtype))], otherwise=add_reference),
    inputs=inputs_at(1.5, 0.25),
    tolerance=EXACT,
    kinds=KINDS,
    alike={"y": "x"},
    forms=add_forms,
    backward=Backward(op=None, saved=()),
)

SQUARE = elementwise_op(
    "square(Tensor x) -> Tensor y",
    square_reference,
    flop=1,
    inputs=inputs_at(1.5),
    tolerance=EXACT,
    kinds=KINDS,
    backward=Backward(op="square_backward", saved=("x",)),
)

GELU = elementwise_op(
    'gelu(Tensor x, str approximate="tanh") -> Tensor y',
    gelu_reference,
    flop=10,
    inputs=inputs_at(1.5),
    tolerance=GELU_TOLERANCE,
    choices={"approximate": APPROXIMATIONS},
    kinds=KINDS,
    backward=Backward(op="gelu_backward", saved=("x",)),
)
"""The default is the tanh approximation, unlike ``torch.nn.functional.gelu``, whose default is ``"none"``."""
