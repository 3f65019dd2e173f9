"""The contract of ``numba::row_sum``: what it computes, how a call becomes a problem, how right an answer must be."""

from __future__ import annotations

import math
from typing import Any

import torch

from registry import Arguments, Floor, Op, Problem, Tolerance, Value
from registry.errors import InvalidArgumentError

ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Half the distance from 1 to the next number, by dtype."""


def reference(x: torch.Tensor) -> torch.Tensor:
    """The sum over the last dimension: ``[..., cols]`` to ``[...]``. Added up in at least float32, rounded once."""
    accumulator = torch.promote_types(x.dtype, torch.float32)
    return x.sum(-1, dtype=accumulator).to(x.dtype)


def problem_of(arguments: Arguments) -> dict[str, Value]:
    """Rows may differ from call to call, columns and dtype are what a kernel is tuned for."""
    x = arguments.tensor("x")
    dtype = str(x.dtype).removeprefix("torch.")
    if not x.shape or dtype not in ROUNDOFF:
        raise InvalidArgumentError(
            f"numba::row_sum: x is {dtype} with {len(x.shape)} dimensions",
            hint=f"expected {' or '.join(ROUNDOFF)} with at least one dimension",
        )
    return {"rows": math.prod(x.shape[:-1]), "cols": x.shape[-1], "dtype": dtype}


def inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    """Random rows; ``spike_last`` puts most of a row's sum into its last element, which a wrong bound misses."""
    shape, device = (problem.rows, problem.cols), generator.device
    x = torch.randn(shape, dtype=problem.torch_dtype, device=device, generator=generator)
    if kind == "spike_last":
        x[:, -1:] = min(4.0 * problem.cols, 3e4)
    return (x,)


def floor(problem: Problem) -> Floor:
    """Every element is read once and added once, every sum is written once."""
    elements = problem.rows * problem.cols
    return Floor(bytes=(elements + problem.rows) * problem.torch_dtype.itemsize, flop=elements)


def scale(problem: Problem, expected: torch.Tensor) -> torch.Tensor:
    """What errors are relative to: the sum itself, which is rounded, and the fp32 roundings of adding it up.

    A sum of n terms of about 1 has partial sums of about sqrt(n); random roundings of n of them make about n units.
    They are fp32's, and weigh that much less where the result is rounded to a half.
    """
    return expected.abs() + float(problem.cols) * ROUNDOFF["float32"] / ROUNDOFF[str(problem.dtype)]


ROW_SUM = Op(
    name="numba::row_sum",
    schema="numba::row_sum(Tensor x) -> Tensor y",
    version=1,
    reference=reference,
    problem=problem_of,
    inputs=inputs,
    floor=floor,
    tolerance=Tolerance(
        rtol={name: 4 * unit for name, unit in ROUNDOFF.items()}, atol=dict.fromkeys(ROUNDOFF, 0.0), scale=scale
    ),
    static=frozenset({"cols", "dtype"}),
    dynamic=frozenset({"rows"}),
    kinds=("normal", "spike_last"),
    examples=tuple(
        {"rows": rows, "cols": cols, "dtype": dtype}
        for dtype in ROUNDOFF
        for rows, cols in ((1, 1), (3, 7), (64, 1000), (5, 4099))
    ),
)
