"""The plan that a call of another size gets from a bound plan, for checks of correctness at other sizes."""

from __future__ import annotations

from collections.abc import Mapping

from ...artifact import Artifact, Signature
from ...contract import Op
from ...device import Device
from ...problem import Arguments, Problem
from .any_size_runs import AnySizeRuns
from .plan import Candidate, Draft, Plan, build
from .resizing import Resizing


def bound_by_call(
    op: Op,
    candidate: Candidate,
    problem: Problem,
    arguments: Arguments,
    device: Device,
    artifacts: Mapping[str, Artifact] | None = None,
) -> Plan:
    """The candidate's plan, bound as for a call; ``signature.arguments.read`` are the attributes that were read."""
    watched = arguments.watched()
    return build(op, candidate, op.pose(watched, problem), watched, device, artifacts)


def at_other_size(plan: Plan, problem: Problem, arguments: Arguments, device: Device) -> Plan | None:
    """The plan for a problem of another size, by the run of ``plan`` (``any_size``) or by kernels that are loaded.

    None if a call would compile or bind again. ``plan`` must come from ``bound_by_call``.
    """
    runs = AnySizeRuns(plan.op)
    if plan.candidate.implementation.any_size:
        home = Draft(plan.op, plan.candidate, plan.problem, device, plan.signature, plan.prepared)
        runs.put(home, plan)
    if _alike(arguments, plan.signature.arguments):
        resized = Resizing(plan, device, runs).at(problem, arguments)
        if resized is not None:
            return resized[1](problem, arguments, *resized)
    return Draft.of(plan.op, plan.candidate, problem, arguments, device).from_memory(runs)


def _alike(arguments: Arguments, others: Arguments) -> bool:
    """True if calls of these arguments are of one family."""
    if Signature(arguments, {}).form != Signature(others, {}).form or arguments.gradient is not others.gradient:
        return False
    pairs = zip(arguments.tensors.values(), others.tensors.values(), strict=True)
    return all(
        one.layout == other.layout and (one.layout != "other" or one.strides == other.strides) for one, other in pairs
    )
