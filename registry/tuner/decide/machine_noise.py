"""The machine's noise: measured by a run before its first finals, and known from earlier runs.

At the start of a run a block times a device copy against itself: the copy needs no compiler, so the device can do this
while the first variants are built. After the first search a block times a verified default against itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuning_db import Environment, Store

from ..jobs import BlockJob, Entrant, JobAnswer, TimedBlock
from ..measure.protocol import TimingProtocol
from ..planning.problems import ProblemPlan
from ..search.findings import Findings
from .noise import PAIRS_PER_DECADE, Noise, Pair

_RUNS, _SAME = 100, 5
"""How many of the latest runs are read, and how many of those in this environment count."""

_COPIES = 4
_ROUNDS_A_PAIR = 10
_SLOW_US = 10_000.0


def aa_job(plans: Sequence[ProblemPlan], protocol: TimingProtocol) -> BlockJob | None:
    """The first job of a run: two pairs of device copies, for the problem of the fewest bytes. None without a problem.

    The job runs no implementation: a fault of one would cost these pairs and delay the first trials.
    """
    possible = [plan for plan in plans if not plan.skipped]
    return _twins(min(possible, key=_bytes), Entrant("", {}, (), "floor"), _COPIES, protocol) if possible else None


def default_job(searched: Sequence[Findings], protocol: TimingProtocol) -> BlockJob | None:
    """The job after a search: a verified default as a pair, on the problem of the fewest bytes. None without one.

    Defaults slower than 10 ms are left out: in that time the finals themselves say more about their noise.
    """
    right = [
        (findings, default)
        for findings in searched
        if (default := findings.default()) is not None and (findings.median_us(default.key) or 0.0) <= _SLOW_US
    ]
    if not right:
        return None
    findings, default = min(right, key=lambda entry: _bytes(entry[0].plan))
    return _twins(findings.plan, findings.entrant(default), 2, protocol, findings.seed)


def _twins(plan: ProblemPlan, entrant: Entrant, count: int, protocol: TimingProtocol, seed: int = 0) -> BlockJob:
    rounds = _ROUNDS_A_PAIR * -(-PAIRS_PER_DECADE // (count // 2))
    dims, details = dict(plan.problem.dims), dict(protocol.details)
    return BlockJob(0, plan.op.name, dims, (entrant,) * count, details, seed, rounds, verify=False)


def _bytes(plan: ProblemPlan) -> int:
    return plan.op.floor(plan.problem).bytes


def earlier_noise(store: Store, environment: Environment) -> Noise:
    """The noise that the latest five runs in this environment stored (``Noise.details`` under ``noise``)."""
    latest = [run for run in store.runs(_RUNS) if run.environment == environment]
    return sum((Noise.of_details(run.summary.get("noise", {})) for run in latest[:_SAME]), Noise())


def aa_of(answer: JobAnswer) -> Noise:
    """The noise of a block of twin entrants: one pair for ten rounds of two entrants. Empty for a lost block."""
    if not isinstance(answer, TimedBlock):
        return Noise()
    taken = [np.asarray(times) for times in answer.times]
    pairs = []
    for one, other in zip(taken[::2], taken[1::2], strict=True):
        for start in range(0, min(len(one), len(other)) - _ROUNDS_A_PAIR + 1, _ROUNDS_A_PAIR):
            window = slice(start, start + _ROUNDS_A_PAIR)
            ratio = float(np.exp(np.median(np.log(other[window] / one[window]))))
            pairs.append(Pair(float(np.median(one[window])), ratio))
    return Noise(single=tuple(pairs))
