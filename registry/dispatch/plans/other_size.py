"""A plan at another size as a call gets it, for whoever checks that it is right there."""

from __future__ import annotations

from collections.abc import Mapping

from ...artifact import Artifact, Signature
from ...contract import Op
from ...device import Device
from ...problem import Arguments, Problem
from .plan import Candidate, Draft, Plan, build
from .sizeless import SizelessRuns


def bound_by_call(
    op: Op,
    candidate: Candidate,
    problem: Problem,
    arguments: Arguments,
    device: Device,
    artifacts: Mapping[str, Artifact] | None = None,
) -> Plan:
    """The candidate's plan, bound as for a call: ``signature.arguments`` tell which attributes were looked at."""
    watched = arguments.watched()
    return build(op, candidate, op.pose(watched, problem), watched, device, artifacts)


def at_other_size(plan: Plan, problem: Problem, arguments: Arguments, device: Device) -> Plan | None:
    """The plan for a problem of another size, with the run of ``plan`` (``any_size``) or what its backend has loaded.

    None where a call would compile or bind anew. ``plan`` was bound by a call.
    """
    runs = SizelessRuns(plan.op)
    if plan.candidate.implementation.any_size:
        home = Draft(plan.op, plan.candidate, plan.problem, device, plan.signature, plan.prepared)
        runs.put(home, plan)
    alike = Signature(arguments, {}).form == Signature(plan.signature.arguments, {}).form
    if alike and all(each.traits[trait] for each in (plan.problem, problem) for trait in ("contiguous", "aligned")):
        resized = plan.resized(problem, arguments, device, runs)
        if resized is not None:
            return resized
    return Draft.of(plan.op, plan.candidate, problem, arguments, device).from_memory(runs)
