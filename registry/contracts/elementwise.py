"""vector_add, square and gelu: one output element from the same element of each input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..contract import Backward, Floor, Op, Tolerance
from ..errors import InvalidArgumentError
from ..problem import Arguments, Problem, Value, dtype_name
from . import fills
from .checks import FLOATS, float_dtype, float_tensor, positive, same_dtype, shape_text
from .rounding import fp32_error, fp32_weight, underflow, units

APPROXIMATIONS = ("none", "tanh")
KINDS = ("normal", "outliers", "spike_last", "constant", "special")
SIZES = (1, 7, 1000, 4096, 65_537)


def add_reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``x + y``, any shape."""
    return x + y


def square_reference(x: torch.Tensor) -> torch.Tensor:
    """``x * x``, any shape."""
    return x * x


def gelu_reference(x: torch.Tensor, approximate: str = "tanh") -> torch.Tensor:
    """``x * Phi(x)``, or its tanh approximation (Hendrycks and Gimpel, 2016); torch computes halves in fp32."""
    return torch.nn.functional.gelu(x, approximate=approximate)


def _add_problem(arguments: Arguments) -> Mapping[str, Value]:
    x, y = float_tensor(arguments, "x"), arguments.tensor("y")
    if x.shape != y.shape:
        raise InvalidArgumentError(
            f"{arguments.op}: x is {shape_text(x.shape)} but y is {shape_text(y.shape)}",
            hint="shapes must be equal; torch.broadcast_tensors(x, y) makes them so",
        )
    same_dtype(arguments.op, ("x", x), ("y", y))
    return {"n": x.numel, "dtype": dtype_name(x.dtype)}


def square_problem(arguments: Arguments) -> Mapping[str, Value]:
    """Dimensions of ``x``, forward and backward."""
    x = float_tensor(arguments, "x")
    return {"n": x.numel, "dtype": dtype_name(x.dtype)}


def gelu_problem(arguments: Arguments) -> Mapping[str, Value]:
    """Dimensions of ``x`` and the approximation, forward and backward."""
    return {**square_problem(arguments), "approximate": arguments.text("approximate")}


def filled(
    problem: Problem, kind: str, generator: torch.Generator, level: float, reverse: bool = False
) -> torch.Tensor:
    """``[n]`` of that kind; ``level`` sets its constants, ``reverse`` the order of its special values."""
    shape, dtype = (problem.n,), problem.torch_dtype
    if kind == "constant":
        return fills.constant(shape, dtype, generator, level)
    x = fills.normal(shape, dtype, generator)
    if kind == "outliers":
        # float16 squares stay finite; elsewhere a detour through float16 would not
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
        # torch's own gelu on CPUs turns inf into nan and the largest numbers into inf: nobody can be held to them
        return [*values, 6e4, -6e4]
    return [*values, finite.max, finite.min, torch.inf, -torch.inf]


def _add_inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    return filled(problem, kind, generator, 1.5), filled(problem, kind, generator, 0.25, reverse=True)


def _square_inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    return (filled(problem, kind, generator, 1.5),)


def _gelu_inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    return filled(problem, kind, generator, 1.5), problem.approximate


def elementwise_floor(tensors: int, flop: int, problem: Problem) -> Floor:
    """``tensors`` of n elements cross memory; ``flop`` an element."""
    return Floor(bytes=tensors * problem.n * problem.torch_dtype.itemsize, flop=flop * problem.n)


def check_elementwise(problem: Problem) -> None:
    """Dimensions that some call could have."""
    positive(problem, "n")
    float_dtype(problem)


def magnitude(_: Problem, reference: torch.Tensor) -> torch.Tensor:
    """Relative to each output."""
    return reference.abs()


def _gelu_magnitude(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    # 16 roundings: the argument's polynomial, tanh or erf, two products
    return reference.abs() * (1 + 16 * fp32_weight(problem))


# one rounding, and a little for the conversion to float64 and back
EXACT = Tolerance(rtol=units(float32=1.01, half=1.01), atol=underflow(), scale=magnitude)

# x * (1 + tanh(u)) cancels for negative x: fp32 tanh near -1 errs by 2**-24, which up to |x| = 8 makes 5e-7 absolute.
# An approximate tanh (2**-11 relative, tanh.approx) misses it by far.
GELU_TOLERANCE = Tolerance(
    rtol=units(float32=2.0, half=1.05),
    atol=fp32_error(1e-6),
    scale=_gelu_magnitude,
)

_CASES = ((torch.float64, 1000), *((dtype, n) for dtype in FLOATS for n in SIZES))
EXAMPLES: tuple[dict[str, Value], ...] = tuple({"n": n, "dtype": dtype_name(dtype)} for dtype, n in _CASES)

VECTOR_ADD = Op(
    name="vector_add",
    schema="vector_add(Tensor x, Tensor y) -> Tensor out",
    version=1,
    reference=add_reference,
    problem=_add_problem,
    inputs=_add_inputs,
    floor=lambda problem: elementwise_floor(3, 1, problem),
    tolerance=EXACT,
    static=frozenset({"dtype"}),
    dynamic=frozenset({"n"}),
    kinds=KINDS,
    examples=EXAMPLES,
    check=check_elementwise,
    backward=Backward(op=None, saved=()),
)

SQUARE = Op(
    name="square",
    schema="square(Tensor x) -> Tensor y",
    version=1,
    reference=square_reference,
    problem=square_problem,
    inputs=_square_inputs,
    floor=lambda problem: elementwise_floor(2, 1, problem),
    tolerance=EXACT,
    static=frozenset({"dtype"}),
    dynamic=frozenset({"n"}),
    kinds=KINDS,
    examples=EXAMPLES,
    check=check_elementwise,
    backward=Backward(op="square_backward", saved=("x",)),
)

GELU = Op(
    name="gelu",
    schema='gelu(Tensor x, str approximate="tanh") -> Tensor y',
    version=1,
    reference=gelu_reference,
    problem=gelu_problem,
    inputs=_gelu_inputs,
    floor=lambda problem: elementwise_floor(2, 10, problem),
    tolerance=GELU_TOLERANCE,
    static=frozenset({"dtype"}),
    choices={"approximate": APPROXIMATIONS},
    dynamic=frozenset({"n"}),
    kinds=KINDS,
    examples=tuple({**dims, "approximate": approximate} for dims in EXAMPLES for approximate in APPROXIMATIONS),
    check=check_elementwise,
    backward=Backward(op="gelu_backward", saved=("x",)),
)
