"""Candidates that were asked for and wait for their variants to be compiled."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...arguments.inputs import arguments_of
from ...artifact import Variant
from ...dispatch.plans.plan import Candidate
from ...problem import Arguments, Problem
from ..planning.problems import ProblemPlan
from ..planning.twin import twin_of
from ..planning.variants import variants_at, variants_of


@dataclass
class Waiting:
    """A candidate asked for whose variants are not all compiled. ``fault``: why the candidate has no launch at all.

    ``extra``: variants that verification uses where they compile, and does without where they do not.
    """

    candidate: Candidate
    variants: tuple[Variant, ...] = ()
    extra: tuple[Variant, ...] = ()
    fault: str = ""


class Launches:
    """Says which variants each candidate of one problem launches."""

    def __init__(self, plan: ProblemPlan) -> None:
        self._plan = plan

    def waiting(self, candidate: Candidate) -> Waiting:
        """The candidate with its variants, and the twin's as ``extra``; a fault of its code is kept, not raised."""
        plan = self._plan
        try:
            variants = variants_of(plan.op, candidate, plan.problem, plan.arguments, plan.device)
            own = {variant.key for variant in variants}
            extra = tuple(variant for variant in self._on_twin(candidate) if variant.key not in own)
            return Waiting(candidate, variants, extra)
        except Exception as fault:  # a stranger's launch() or variant; its fault is the candidate's
            return Waiting(candidate, fault=f"{type(fault).__name__}: {fault}")

    def _on_twin(self, candidate: Candidate) -> tuple[Variant, ...]:
        """The candidate's variants on the problem's twin, on which most of a large problem is verified."""
        if self._twin is None:
            return ()
        twin, arguments = self._twin
        return variants_at(self._plan.op, candidate, twin, arguments, self._plan.device) or ()

    @cached_property
    def _twin(self) -> tuple[Problem, Arguments] | None:
        twin = twin_of(self._plan.op, self._plan.problem)
        return None if twin is None else (twin, arguments_of(self._plan.op, twin))
