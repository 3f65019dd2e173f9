"""Candidates that were asked for and wait for their variants to be compiled."""

from __future__ import annotations

from dataclasses import dataclass

from ...artifact import Variant
from ...dispatch.plans.plan import Candidate, Draft
from ..planning.problems import ProblemPlan
from ..planning.variants import variants_at


@dataclass
class Waiting:
    """A candidate asked for whose variants are not all compiled. ``fault``: why the candidate has no launch at all;
    ``misfit``: why the device has too little memory for it.

    ``extra``: variants for verification, which does without those that do not compile.
    """

    candidate: Candidate
    variants: tuple[Variant, ...] = ()
    extra: tuple[Variant, ...] = ()
    fault: str = ""
    misfit: str = ""


def waiting_for(plan: ProblemPlan, candidate: Candidate) -> Waiting:
    """The candidate with its variants, and as ``extra`` those of ``plan.verified``.

    A fault of its code is kept, not raised.
    """
    try:
        draft = Draft.of(plan.op, candidate, plan.problem, plan.arguments, plan.device)
        if misfit := plan.too_large(draft.signature.scratch.values()):
            return Waiting(candidate, misfit=misfit)
        variants = draft.variants()
        found = [variants_at(plan.op, candidate, *each, plan.device) or () for each in plan.verified]
        extra = {variant.key: variant for variants_there in found for variant in variants_there}
        for variant in variants:
            extra.pop(variant.key, None)
        return Waiting(candidate, variants, tuple(extra.values()))
    except Exception as fault:  # a stranger's launch() or variant; its fault is the candidate's
        return Waiting(candidate, fault=f"{type(fault).__name__}: {fault}")
