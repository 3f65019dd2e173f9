"""Problems by dimensions alone, e.g. of a shapes file: each dimension is checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import InvalidArgumentError, UnknownNameError
from ..problem import Problem, Value, check_choice, check_integer, check_positive, torch_dtype
from .function_answers import refuse_verdict

if TYPE_CHECKING:
    from .op import Op


def named_problem(op: Op, dims: Mapping[str, Value]) -> Problem:
    """A problem without arguments, each dimension checked; a missing distribution is the first of its names.

    Raises UnknownNameError for an unknown dimension, InvalidArgumentError for a missing or impossible one.
    """
    known = op.static | op.dynamic
    for name in dims:
        if name not in known:
            raise UnknownNameError(f"dimension of {op.name}", name, known)
    given = {**dims, **{name: values[0] for name, values in op.distributions.items() if name not in dims}}
    if missing := sorted(known - given.keys()):
        raise InvalidArgumentError(
            f"{op.name}: dimensions missing: {', '.join(missing)}",
            hint=f"{op.name} has the dimensions {', '.join(sorted(known))}",
        )
    for name in op.dynamic:
        check = check_integer if name in op.integers else check_positive
        check(op.name, name, given[name])
    for name, values in op.named_values.items():
        check_choice(op.name, name, given[name], values)
    if "dtype" in known:
        torch_dtype(str(given["dtype"]))
    problem = Problem(op.name, given)
    if op.check is not None:
        refuse_verdict(op, "check", op.check(problem))
    return problem
