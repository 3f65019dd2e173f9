"""The facts that a decision stores about a contest, and why its times cannot be believed."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

from tuning_db import Interval, is_noise

from ...dispatch.plans.plan import Candidate
from .contest import FLOOR, Contest
from .judge import ALPHA, INCUMBENT_COPY, Verdict, block_ratio, median_of, time_ratio
from .noise import Noise

DISTURBED: Mapping[str, float] = {"cuda": 2.0, "cpu": 5.0}
"""Finals count as disturbed if their winner takes this many times its time in the search, by device type.

Of 1447 candidates that were in the finals of three runs on an H200, one half was within 0.7% of the search, 99% at most
1.14 times slower, and the farthest 1.42 times. A CPU's processes share their cores with other programs.
"""


def floor_us(contest: Contest) -> float | None:
    """The copy floor's time, None where the copy did not run."""
    floors = [us for block in contest.blocks for us in block.get(FLOOR, ())]
    return statistics.median(floors) if floors else None


def disturbance(contest: Contest, winner: str) -> str:
    """Why the finals cannot be believed because other work kept the device busy; "" when they can."""
    searched, decided = contest.findings.median_us(winner), median_of(winner, contest.blocks)
    if searched is None or decided < DISTURBED[contest.findings.plan.device.type] * searched:
        return ""
    return f"its finals were disturbed: {decided:.4g} µs for what took {searched:.4g} µs in the search"


def too_fast(contest: Contest, name: str) -> str:
    """Why the finals of an entrant cannot be believed beside its search: it did less work; "" when they can.

    The machine may have been disturbed during the search, which the other entrants then show, too.
    """
    met = [key for key in contest.candidates if any(key in block for block in contest.blocks)]
    times = {key: (median_of(key, contest.blocks), contest.findings.median_us(key)) for key in met}
    ratios = {key: decided / searched for key, (decided, searched) in times.items() if searched}
    others = [ratio for key, ratio in ratios.items() if key != name and key not in contest.refused]
    limit = DISTURBED[contest.findings.plan.device.type]
    if name not in ratios or not others or ratios[name] * limit > min(1.0, statistics.median(others)):
        return ""
    decided, searched = times[name]
    return f"{decided:.4g} µs in the finals for what took {searched:.4g} µs in the search, unlike the others"


def baselines(contest: Contest, winner: Candidate) -> dict[str, float]:
    """Name of each other implementation -> its best candidate's time over the winner's.

    The ratio is paired by rounds where both were in the blocks, or else in the pre-final; otherwise it is the
    unpaired ratio of the search.
    """
    ratios: dict[str, float] = {}
    entered = [contest.incumbent, *contest.challengers, *contest.findings.best_of_each()]
    for candidate in {one.key: one for one in entered if one.key not in contest.refused}.values():
        name = candidate.implementation.name
        ratio = block_ratio(candidate.key, winner.key, contest.blocks)
        if ratio is None:
            ratio = block_ratio(candidate.key, winner.key, [contest.early])
        if ratio is None:
            mine, its = contest.findings.median_us(candidate.key), contest.findings.median_us(winner.key)
            ratio = mine / its if mine and its else None
        if name != winner.implementation.name and ratio is not None:
            ratios[name] = min(ratio, ratios.get(name, ratio))
    return ratios


def noisy(contest: Contest, winner: Candidate, noise: Noise) -> frozenset[str]:
    """The other implementations in the blocks or the pre-final whose ratio to the winner is noise."""
    alpha, found = ALPHA / max(1, len(contest.challengers)), set[str]()
    for blocks in (contest.blocks, [contest.early]):
        for key, candidate in contest.candidates.items():
            if any({key, winner.key} <= block.keys() for block in blocks) and key != winner.key:
                ratio = time_ratio(key, winner.key, blocks, alpha, noise)
                if is_noise(ratio.low, ratio.high):
                    found.add(candidate.implementation.name)
    return frozenset(found - {winner.implementation.name})


def default_ratio(contest: Contest, winner: Candidate, noise: Noise) -> Interval | None:
    """The default's time over the winner's, with the interval of a remeasurement; None if the default did not run.

    Where the winner is the default and the incumbent, the interval is that of its copy.
    """
    default = contest.findings.default()
    if default is None:
        return None
    name = default.key
    if name == winner.key:
        name = INCUMBENT_COPY if winner.key == contest.incumbent.key else ""
    if not any({name, winner.key} <= block.keys() for block in contest.blocks):
        return None
    alpha = ALPHA / max(1, len(contest.challengers))
    ratio = time_ratio(name, winner.key, contest.blocks, alpha, noise, elsewhere=True)
    value = 1.0 if name == INCUMBENT_COPY else ratio.value
    return Interval(value, min(value, ratio.low), max(value, ratio.high))


def ties(contest: Contest, verdict: Verdict) -> Iterator[str]:
    """Candidates that could not be told from the winner, as text: ``triton.row BLOCK=1024``."""
    for name in verdict.ties:
        candidate = contest.candidates[name]
        config = [f"{key}={value}" for key, value in candidate.config.items()]
        yield " ".join([candidate.implementation.name, *config])
