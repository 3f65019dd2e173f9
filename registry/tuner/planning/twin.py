"""The twin of a large problem: a small problem that the same compiled code runs, for most of the verification.

The float64 reference of gigabytes takes far longer than the launches that it judges. The kind of inputs that is timed
is verified at full size all the same.
"""

from __future__ import annotations

from ...contract import Op
from ...errors import RegistryError
from ...problem import Problem

LARGE_BYTES = 128 << 20
"""A problem that must move more bytes than these has a twin."""

_TWIN_BYTES = 32 << 20
_MULTIPLE = 16
"""An extent that is a multiple of this stays one in the twin: compilers specialise on divisibility."""


def twin_of(op: Op, problem: Problem) -> Problem | None:
    """The problem with its largest dynamic dimension halved until it moves at most 32 MiB.

    None where the problem is not large, or where no halving brings it below 64 MiB.
    """
    if op.floor(problem).bytes <= LARGE_BYTES:
        return None
    name = max(op.dynamic, key=lambda name: int(problem.dims[name]), default=None)
    twin = problem
    while name is not None and op.floor(twin).bytes > _TWIN_BYTES:
        size = int(twin.dims[name])
        if size % (2 * _MULTIPLE):
            break
        try:
            twin = op.problem_of({**twin.dims, name: size // 2})
        except RegistryError:
            break
    return None if op.floor(twin).bytes > LARGE_BYTES // 2 else twin
