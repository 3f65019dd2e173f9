"""Deciding: paired ratios over blocks in fresh processes, judged against the noise of a candidate with itself.

The unit of evidence is a block's median log ratio: between processes (allocation, placement) a time shifts by more
than within one, so rounds of one process alone overstate what is known. See docs/tuning.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

BLOCKS = 3
ROUNDS = 10
ALPHA = 0.05
PAIRS_PER_DECADE = 10
_RESAMPLES = 1000
_CLIP = 0.1

Times = Mapping[str, Sequence[float]]
"""One block: entrant -> its time in µs in each round. Rounds pair up by index."""

INCUMBENT_COPY = "incumbent again"


@dataclass(frozen=True)
class Ratio:
    """An entrant's time over another's, with its interval: 0.9 means 10% faster."""

    value: float
    low: float
    high: float

    @property
    def inverse(self) -> Ratio:
        """The other's time over this one's."""
        return Ratio(1 / self.value, 1 / self.high, 1 / self.low if self.low else math.inf)


@dataclass(frozen=True)
class Verdict:
    """Who won. ``ratio`` is incumbent's time over the winner's (1 when the incumbent stays), with its interval."""

    winner: str
    verdict: str
    ratio: Ratio
    noise: float


def judge(incumbent: str, challengers: Sequence[str], blocks: Sequence[Times], noise: float) -> Verdict:
    """The incumbent is replaced only if an interval, corrected for the number of challengers, excludes 1 and the
    gain exceeds ``noise`` (a relative A/A difference); otherwise it is a tie and it stays."""
    alpha = ALPHA / max(1, len(challengers))
    entered = [name for name in challengers if sum(name in block for block in blocks) > 1]
    clear = {name: time_ratio(name, incumbent, blocks, alpha, clip=_CLIP) for name in entered}
    ratios = {name: time_ratio(name, incumbent, blocks, alpha) for name in entered}
    better = {name: ratios[name] for name in entered if clear[name].high < 1 and ratios[name].value < 1 / (1 + noise)}
    if better:
        winner = min(better, key=lambda name: better[name].value)
        return Verdict(winner, "replaced", better[winner].inverse, noise)
    own = time_ratio(INCUMBENT_COPY, incumbent, blocks, ALPHA)
    beaten = bool(entered) and all(ratio.low > 1 for ratio in clear.values())
    return Verdict(incumbent, "kept" if beaten else "tie", Ratio(1.0, own.inverse.low, own.inverse.high), noise)


def time_ratio(one: str, other: str, blocks: Sequence[Times], alpha: float, clip: float = math.inf) -> Ratio:
    """``one``'s time over ``other``'s: the wider of a bootstrap within blocks and a t interval over blocks.

    ``clip`` limits log ratios. The t interval grows with the spread of the gain itself: three blocks that show a gain
    of 46, 5 and 36 leave no doubt about who is faster, but much about by how much.
    """
    common = [block for block in blocks if {one, other} <= block.keys()]
    logs = [np.log(np.asarray(block[one]) / np.asarray(block[other])).clip(-clip, clip) for block in common]
    if not logs:
        return Ratio(1.0, 0.0, math.inf)
    medians = np.array([np.median(values) for values in logs])
    centre = float(np.median(medians))
    low, high = _bootstrap(logs, alpha)
    if len(medians) > 1:
        reach = t_quantile(1 - alpha / 2, len(medians) - 1) * float(medians.std(ddof=1)) / math.sqrt(len(medians))
        mean = float(medians.mean())
        low, high = min(low, mean - reach), max(high, mean + reach)
    return Ratio(math.exp(centre), math.exp(low), math.exp(high))


def t_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t. Exact for 1 and 2 degrees of freedom; those of more take 2's, which is wider."""
    if freedom == 1:
        return math.tan(math.pi * (probability - 0.5))
    return (2 * probability - 1) * math.sqrt(2 / (4 * probability * (1 - probability)))


def aa_noise(pairs: Sequence[tuple[float, float]], median_us: float) -> float:
    """Relative A/A noise at a duration: the 95th percentile over the same-candidate pairs of that decade.

    ``pairs``: (duration in µs, ratio of a candidate's time to its own copy's). With fewer than ten pairs in the
    decade all pairs count.
    """
    decade = [ratio for us, ratio in pairs if abs(math.log10(us / median_us)) <= 0.5]
    chosen = decade if len(decade) >= PAIRS_PER_DECADE else [ratio for _, ratio in pairs]
    if not chosen:
        return 0.0
    return float(np.expm1(np.percentile(np.abs(np.log(chosen)), 95)))


def same_candidate_pairs(incumbent: str, blocks: Sequence[Times]) -> list[tuple[float, float]]:
    """(duration, ratio of medians) of the incumbent and its copy, one a block."""
    return [
        (float(np.median(block[incumbent])), float(np.median(block[INCUMBENT_COPY]) / np.median(block[incumbent])))
        for block in blocks
        if {incumbent, INCUMBENT_COPY} <= block.keys()
    ]


def _bootstrap(logs: Sequence[np.ndarray], alpha: float) -> tuple[float, float]:
    generator = np.random.default_rng(0)
    draws = [np.median(generator.choice(values, (_RESAMPLES, len(values))), axis=1) for values in logs]
    means = np.mean(draws, axis=0)
    low, high = np.quantile(means, [alpha / 2, 1 - alpha / 2])
    return float(low), float(high)
