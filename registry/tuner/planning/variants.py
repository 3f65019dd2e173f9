"""The variants that a candidate needs compiled, for the problem that is tuned and for others that it may serve."""

from __future__ import annotations

import contextlib

from ...artifact import Variant
from ...contract import Op
from ...device import Device
from ...discovery import answers
from ...dispatch.plans.plan import Candidate, Draft
from ...problem import Arguments, Problem


def variants_at(
    op: Op, candidate: Candidate, problem: Problem, arguments: Arguments, device: Device
) -> tuple[Variant, ...] | None:
    """The candidate's variants for any problem; None where it does not support the problem or the config is invalid."""
    implementation, config = candidate.implementation, candidate.config
    if answers.refusals(implementation, problem, device):
        return None
    if implementation.space(problem, device).violations(config):
        return None
    return Draft.of(op, candidate, problem, arguments, device).variants()


def artifact_hash(op: Op, candidate: Candidate, problem: Problem, arguments: Arguments, device: Device) -> str:
    """Hash of the kernels' texts and names that a candidate compiles for a problem, see ``artifact.texts_of``.

    "" if the candidate compiles nothing or its launch fails, which a trial reports. A kernel's text may be read or
    written when a launch is made, where the implementation's fingerprint does not see it.
    """
    with contextlib.suppress(Exception):  # whatever the author's code raises, which a trial tells
        return Draft.of(op, candidate, problem, arguments, device).texts
    return ""
