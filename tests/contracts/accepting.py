"""Whether the rule of an op accepts a computation: what tests of tolerances ask of references and of mutants."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from registry import Op
from registry.arguments.schema import with_tensors
from registry.correctness import numerics
from registry.problem import Problem, Value


def accepted(op: Op, dims: Mapping[str, Value], compute: Callable[..., Any]) -> bool:
    """Whether a computation's results are right for every kind of inputs.

    ``compute(*values)`` returns the op's outputs and writes to the arguments that the op mutates; what it returns for
    an op without outputs is ignored.
    """
    for kind in op.kinds:
        problem, values, reference, own = _judged_by(op, tuple(dims.items()), kind)
        given = with_tensors(values, torch.clone)
        returned = compute(*given)
        results = op.results(returned if op.parsed.outputs else None, given)
        if not numerics.compare(op, problem, results, reference, own, values).ok:
            return False
    return True


@functools.lru_cache(maxsize=24)
def _judged_by(op: Op, dims: tuple[tuple[str, Value], ...], kind: str) -> tuple[Problem, tuple[Any, ...], Any, Any]:
    """A problem with inputs of a kind, what is right for them in float64, and the reference's own error.

    Mutants are tried on the problems of one another: made once for each, these took most of their time.
    """
    problem = op.problem_of(dict(dims))
    values = op.draw(problem, kind, torch.Generator().manual_seed(7))
    reference = numerics.reference64(op, values)
    return problem, values, reference, numerics.own_error(op, problem, values, reference)
