"""A large problem's smaller twin: what most kinds of inputs are verified on, by the same compiled code.

The float64 reference of gigabytes takes far longer than what it judges. The kind of inputs that is timed is verified
at full size all the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...artifact import Artifact
from ...contract import Op
from ...dispatch.plans.plan import Candidate, Plan, build
from ...errors import RegistryError
from ...problem import Problem
from ..verify.probes import variants_at
from ..verify.session import Session

LARGE_BYTES = 128 << 20
_TWIN_BYTES = 32 << 20
_MULTIPLE = 16
"""Extents stay multiples of it where they were: compilers specialise on that."""


def smaller_problem(op: Op, problem: Problem) -> Problem | None:
    """The problem with its largest dynamic dimension halved until little is left; None for one that is not large."""
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


def smaller_plan(candidate: Candidate, twin: Session, artifacts: Mapping[str, Artifact]) -> Plan | None:
    """The candidate bound to the twin; None where it does not run it, or not from these artifacts."""
    try:
        wanted = variants_at(twin.op, candidate, twin.problem, twin.arguments, twin.device)
        if wanted is None or any(variant.key not in artifacts for variant in wanted):
            return None
        return build(twin.op, candidate, twin.problem, twin.arguments, twin.device, artifacts)
    except RegistryError:
        return None
