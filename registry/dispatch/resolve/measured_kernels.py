"""Whether the kernels that a decision's candidate compiles are those that were measured.

A kernel's text may be read or written when a launch is made, where the implementation's fingerprint does not see it.
"""

from __future__ import annotations

from ...arguments.inputs import arguments_of
from ...implementation import Implementation
from ..plans.plan import Candidate, Draft
from .situation import Situation
from .winners import Winner


def kernels_changed(decision: Winner, implementation: Implementation, situation: Situation) -> bool:
    """True if a decision's implementation, installed as it was measured, compiles other kernels than then.

    They are compared for the problem of the first decision about kernels of that hash: an unchanged implementation
    chooses among unchanged kernels as it did. False for a decision that does not tell its kernels.
    """
    measured = decision.artifact_hash
    if not measured:
        return False
    place = implementation.name, measured
    if place not in situation.kernels_changed:
        situation.kernels_changed[place] = _compiles_others(decision, implementation, situation)
    return situation.kernels_changed[place]


def _compiles_others(decision: Winner, implementation: Implementation, situation: Situation) -> bool:
    op, candidate = situation.op, Candidate(implementation, decision.candidate.config)
    try:
        problem = op.problem_of(decision.problem.dims)
        draft = Draft.of(op, candidate, problem, arguments_of(op, problem), situation.device)
        return draft.texts != decision.artifact_hash
    except Exception:  # whatever the author's code raises, which is told when the plan is built
        return False
