"""Whether an implementation says that it supports a problem and a configuration, noted where it does not."""

from __future__ import annotations

from ..device import Device
from ..discovery import answers
from ..dispatch.plans.plan import Candidate
from ..folding import Place
from ..problem import Problem
from .reports import Notes


def is_supported(notes: Notes, place: Place, candidate: Candidate, problem: Problem, device: Device) -> bool:
    """True if it is; else its reasons are noted as skipped, and a question that it fails to answer as a failure."""
    implementation = candidate.implementation
    try:
        reasons = answers.refusals(implementation, problem, device)
        reasons = reasons or tuple(answers.space_of(implementation, problem, device).violations(candidate.config))
    except Exception as fault:
        notes.failures.append((place, answers.fault_text(implementation, "unsupported", fault)))
        return False
    if reasons:
        notes.skipped.append((place, "; ".join(reasons)))
    return not reasons
