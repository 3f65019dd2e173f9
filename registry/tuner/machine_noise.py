"""The machine's noise: measured when a run starts, and known from the runs before.

At the start a candidate enters a block as two, and so does a device copy: one that needs no compiler, so that the
device can do this while the first variants are built.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuning_db import Environment, Store

from ..dispatch.plan import Candidate
from .jobs import Answer, BlockJob, Entrant, Timed
from .noise import PAIRS_PER_DECADE, Noise, Pair
from .planning import ProblemPlan
from .probes import variants_at
from .protocol import Protocol

_RUNS, _SAME = 100, 5
"""Runs that are looked at, and how many of the same environment count."""

_COPIES = 4
_ROUNDS_A_PAIR = 10
_ROUNDS = _ROUNDS_A_PAIR * -(-PAIRS_PER_DECADE // (_COPIES // 2))


def aa_job(plans: Sequence[ProblemPlan], protocol: Protocol) -> BlockJob | None:
    """The job to send: of the problem that moves the fewest bytes the copy as two pairs, and a default as one, if there
    is one that nobody has to compile. None without a problem."""
    possible = [plan for plan in plans if not plan.skipped]
    if not possible:
        return None
    least = min(possible, key=lambda plan: plan.op.floor(plan.problem).bytes)
    copies = (Entrant("", {}, (), "floor"),) * _COPIES
    twins = tuple(Entrant(one.implementation.name, one.config, (), "candidate") for one in _at_hand(least)[:1]) * 2
    dims, details = dict(least.problem.dims), dict(protocol.details)
    return BlockJob(0, least.op.name, dims, (*copies, *twins), details, seed=0, rounds=_ROUNDS)


def _at_hand(plan: ProblemPlan) -> list[Candidate]:
    """Defaults that consist of nothing to be compiled."""
    place = plan.problem, plan.arguments, plan.device
    return [candidate for candidate in plan.defaults() if variants_at(plan.op, candidate, *place) == ()]


def earlier_noise(store: Store, environment: Environment) -> Noise:
    """What the latest runs in the same environment stored about noise (``Noise.details`` under ``noise``)."""
    latest = [run for run in store.runs(_RUNS) if run.environment == environment]
    return sum((Noise.of_details(run.summary.get("noise", {})) for run in latest[:_SAME]), Noise())


def aa_of(answer: Answer) -> Noise:
    """What the job's answer says: a pair for every ten rounds of two entrants. Nothing when it was lost."""
    if not isinstance(answer, Timed):
        return Noise()
    taken = [np.asarray(times) for times in answer.times]
    pairs = []
    for one, other in zip(taken[::2], taken[1::2], strict=True):
        for start in range(0, min(len(one), len(other)) - _ROUNDS_A_PAIR + 1, _ROUNDS_A_PAIR):
            window = slice(start, start + _ROUNDS_A_PAIR)
            ratio = float(np.exp(np.median(np.log(other[window] / one[window]))))
            pairs.append(Pair(float(np.median(one[window])), ratio))
    return Noise(single=tuple(pairs))
