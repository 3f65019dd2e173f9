"""The machine's noise: measured when a run starts, and known from the runs before.

At the start a device copy enters a block as two. A copy needs neither a compiler nor a right candidate, so the device
can do this while the first variants are built.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuning_db import Environment, Store

from .jobs import Answer, BlockJob, Entrant, Timed
from .noise import PAIRS_PER_DECADE, Noise, Pair
from .planning import ProblemPlan
from .protocol import Protocol

_RUNS, _SAME = 100, 5
"""Runs that are looked at, and how many of the same environment count."""

_ENTRANTS = 4
_ROUNDS_A_PAIR = 10
_ROUNDS = _ROUNDS_A_PAIR * -(-PAIRS_PER_DECADE // (_ENTRANTS // 2))


def aa_job(plans: Sequence[ProblemPlan], protocol: Protocol) -> BlockJob | None:
    """The job to send: the copy of the problem that moves the fewest bytes, as two pairs. None without a problem."""
    possible = [plan for plan in plans if not plan.skipped]
    if not possible:
        return None
    least = min(possible, key=lambda plan: plan.op.floor(plan.problem).bytes)
    copies = (Entrant("", {}, (), "floor"),) * _ENTRANTS
    return BlockJob(0, least.op.name, dict(least.problem.dims), copies, dict(protocol.details), seed=0, rounds=_ROUNDS)


def earlier_noise(store: Store, environment: Environment) -> Noise:
    """What the latest runs in the same environment stored about noise (``Noise.details`` under ``noise``)."""
    latest = [run for run in store.runs(_RUNS) if run.environment == environment]
    return sum((Noise.of_details(run.summary.get("noise", {})) for run in latest[:_SAME]), Noise())


def aa_of(answer: Answer) -> Noise:
    """What the job's answer says: a pair for every ten rounds of two entrants. Nothing when it was lost."""
    if not isinstance(answer, Timed):
        return Noise()
    ran = [np.asarray(times) for times in answer.times if times]
    pairs = []
    for one, other in zip(ran[::2], ran[1::2], strict=False):
        for start in range(0, min(len(one), len(other)) - _ROUNDS_A_PAIR + 1, _ROUNDS_A_PAIR):
            window = slice(start, start + _ROUNDS_A_PAIR)
            ratio = float(np.exp(np.median(np.log(other[window] / one[window]))))
            pairs.append(Pair(float(np.median(one[window])), ratio))
    return Noise(single=tuple(pairs))
