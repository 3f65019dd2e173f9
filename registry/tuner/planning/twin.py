"""The twin of a large problem: a smaller problem that runs the same compiled code and is verified in its place.

The float64 reference of gigabytes takes far longer than the launches that it judges. The kind of inputs that is timed
is still verified at full size.
"""

from __future__ import annotations

from collections.abc import Callable

from ...contract import Op
from ...errors import RegistryError
from ...problem import Problem

LARGE_BYTES = 128 << 20
"""A problem that must move more bytes than this has a twin."""

_TWIN_BYTES = 32 << 20
_FEW = 64
"""The greatest dynamic dimension of a problem of few elements."""
_FEW_BYTES = 8 << 20
_MULTIPLE = 16
"""A multiple of this is only halved to another multiple of it: compilers specialise on divisibility."""


def is_large(op: Op, problem: Problem) -> bool:
    """Whether the problem moves so many bytes that its references take far longer than its launches."""
    return op.floor(problem).bytes > LARGE_BYTES


def twin_of(op: Op, problem: Problem) -> Problem | None:
    """The problem with its dynamic dimensions halved, the largest first, until it moves at most 32 MiB.

    None where the problem is not large, or where no halving brings it below 64 MiB.
    """
    if not is_large(op, problem):
        return None
    twin = _halved(op, problem, lambda each, _: op.floor(each).bytes > _TWIN_BYTES)
    return None if op.floor(twin).bytes > LARGE_BYTES // 2 else twin


def of_few_elements(op: Op, problem: Problem) -> Problem:
    """The problem with its dynamic dimensions halved until each is at most 64 and it moves at most 8 MiB."""
    return _halved(op, problem, lambda each, size: size > _FEW or op.floor(each).bytes > _FEW_BYTES)


def _halved(op: Op, problem: Problem, goes_on: Callable[[Problem, int], bool]) -> Problem:
    """The problem with its largest dynamic dimension halved while it ``goes_on`` and half of it is a multiple of 16.

    ``goes_on`` is given a problem and the size of its largest dynamic dimension.
    """
    while op.dynamic:
        name = max(op.dynamic, key=lambda each: int(problem.dims[each]))
        size = int(problem.dims[name])
        if size <= 0 or size % (2 * _MULTIPLE) or not goes_on(problem, size):
            break
        try:
            problem = op.problem_of({**problem.dims, name: size // 2})
        except RegistryError:
            break
    return problem
