"""Small ops for tests of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from registry import Arguments, Backward, Floor, Op, Problem
from registry.contracts import SQUARE


def toy(
    schema: str, reference: Callable[..., Any], backward: Backward | None = None, *, fake: Any = None, flop: int = 1
) -> Op:
    """An op that accepts every dtype, so that gradcheck can use float64; its problem has all elements as ``n``."""
    return Op(
        name=schema.partition("(")[0],
        schema=schema,
        version=1,
        reference=reference,
        problem=_problem_of,
        inputs=SQUARE.inputs,
        floor=lambda _: Floor(1, flop),
        tolerance=SQUARE.tolerance,
        static=frozenset({"dtype"}),
        dynamic=frozenset({"n"}),
        backward=backward,
        fake=fake,
    )


def _problem_of(arguments: Arguments) -> Problem:
    elements = sum(spec.numel for spec in arguments.tensors.values())
    return Problem(arguments.op, {"n": max(1, elements), "dtype": "float32"})
