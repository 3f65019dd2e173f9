"""The variants that a candidate needs compiled, for the problem that is tuned and for others that it may serve."""

from __future__ import annotations

from ...artifact import Variant
from ...contract import Op
from ...device import Device
from ...dispatch.plans.plan import Candidate, Draft
from ...problem import Arguments, Problem


def variants_at(
    op: Op, candidate: Candidate, problem: Problem, arguments: Arguments, device: Device
) -> tuple[Variant, ...] | None:
    """The candidate's variants for any problem; None where it does not support the problem or the config is invalid."""
    implementation, config = candidate.implementation, candidate.config
    if any(True for _ in implementation.unsupported(problem, device)):
        return None
    if implementation.space(problem, device).violations(config):
        return None
    return Draft.of(op, candidate, problem, arguments, device).variants()
