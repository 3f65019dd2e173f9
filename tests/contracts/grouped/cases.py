"""Inputs of an op with their float64 references, and the kinds of inputs that find changed arguments to be wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch

from registry.contract import Op, as_tuple
from registry.correctness import numerics
from registry.problem import Problem


class Case(NamedTuple):
    """A call's values, its float64 reference, and the error of the reference itself in the call's dtype."""

    values: tuple[Any, ...]
    reference: tuple[torch.Tensor, ...]
    own: tuple[float, ...]


@cache
def case(op: Op, problem: Problem, kind: str) -> Case:
    """The call of a problem with one kind of inputs."""
    values = op.draw(problem, kind, torch.Generator().manual_seed(7))
    reference = numerics.reference64(op, values)
    return Case(values, reference, numerics.own_error(op, problem, values, reference))


def refused(op: Op, problem: Problem, **change: Callable[[dict[str, Any]], Any]) -> list[str]:
    """The kinds of inputs on which the reference of changed arguments is found to be wrong."""
    found = []
    for kind in op.kinds:
        values, reference, own = case(op, problem, kind)
        named = dict(zip(op.parsed.names, values, strict=True))
        given = {**named, **{name: new(named) for name, new in change.items()}}
        results = as_tuple(op.reference(*given.values()))
        if not numerics.compare(op, problem, results, reference, own, values).ok:
            found.append(kind)
    return found
