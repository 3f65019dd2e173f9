"""The outcome of a problem, in the form of events and of the closing table."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tuning_db import Decision

from ..events import Incumbent, Result
from ..planning.problems import ProblemPlan
from ..search.findings import Findings


def without_winner(findings: Findings, why: str) -> Result:
    """The result of a problem whose finals stored nothing, and why."""
    plan, floor_us, name = findings.plan, findings.floor_us, findings.plan.device.name
    return Result(plan.problem, "", {}, None, floor_us, {}, "none", findings.statuses, reason=why, hardware=name)


def result_of(
    plan: ProblemPlan,
    decision: Decision,
    verdict: str,
    statuses: Counter[str] | None = None,
    met: Incumbent | None = None,
    reason: str = "",
    noisy: frozenset[str] = frozenset(),
) -> Result:
    """A stored decision as the closing table shows it.

    ``met`` is the incumbent of finals that were held now, ``noisy`` the implementations whose ratios these do not tell.
    """
    result = Result(
        plan.problem,
        decision.candidate.implementation,
        decision.candidate.config,
        decision.median_us,
        decision.floor_us,
        decision.baselines,
        verdict,
        statuses or Counter(),
        met,
        ties=decision.ties,
        default_ratio=decision.default_ratio,
        reason=reason,
        baseline=plan.op.baseline,
        hardware=plan.device.name,
        noisy=noisy,
    )
    if met is None:
        return result
    return replace(result, ratio=decision.ratio, low=decision.lo, high=decision.hi, noise=decision.aa)
