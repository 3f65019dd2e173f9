"""The decision: paired ratios over blocks in fresh processes, judged against the noise of a candidate with itself.

The unit of evidence is a block's median log ratio: between processes (allocation, placement) a time shifts by more
than within one, so rounds of one process alone overstate what is known. See docs/tuning.md.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ...statistics.student_t import t_quantile
from .noise import Noise, Pair, Prior, same_decade
from .spread import log_ratio, moderated, spread_of

BLOCKS = 3
MOST_BLOCKS = 5
FEW_TELL, USUAL_IS_KNOWN = 4, 24
"""Numbers of finals that show what noise is usual: below the first a problem has five blocks, below the second four,
from there on three.

With three challengers of which one is 2% faster, 24 problems together miss 24.0% in three blocks, 12 of them 25.4% and
one alone 28.1%. One alone misses 16.7% in four blocks and 12.7% in five
(benchmarks/results/h200/finals_simulation.md)."""
ROUNDS = 24
PRE_ROUNDS = 10
ATTEMPTS = 3
"""Finals of one problem at most, when other runs publish in between."""
FINALISTS = 2
BEHIND = 1.03
"""Times the fastest of a pre-final: processes differ by a percent, so that a slower candidate would win no block."""
ALPHA = 0.04
_METHODS = 0.0055
"""Standard deviation, over problems, of the difference between the log ratios of two methods of timing, without noise.

Of 80 ratios that benchmarks/truth.py found on an H200, with other copies, graphs and flushes than the tuner's, the mean
square deviation was 0.81% squared, of which processes explain 0.58% squared. The difference repeats from run to run:
1.6 to 2.1% for rms_norm(8192 x 8192), where the first launch after an idle device costs one kernel more than the other.
"""
_Z = statistics.NormalDist().inv_cdf
_RESAMPLES = 1000
_CLIP = 0.1
_CLIPPED = 6.0
"""Log ratios of a noisy problem are clipped at this many standard deviations: more than its interval is wide."""

Times = Mapping[str, Sequence[float]]
"""One block: entrant -> its time in µs in each round. Rounds pair up by index."""

INCUMBENT_COPY = "incumbent again"


@dataclass(frozen=True)
class Ratio:
    """An entrant's time over another entrant's, with an interval: 0.9 means 10% faster."""

    value: float
    low: float
    high: float

    @property
    def inverse(self) -> Ratio:
        """The ratio the other way round: the second entrant's time over the first's."""
        return Ratio(1 / self.value, 1 / self.high, 1 / self.low if self.low else math.inf)


@dataclass(frozen=True)
class Verdict:
    """The name of the winner. ``ratio`` is the incumbent's time over the winner's (1 when the incumbent stays).

    ``ties``: names of other entrants that cannot be told from the winner. ``noise`` is the relative A/A noise at this
    duration.
    """

    winner: str
    verdict: str
    ratio: Ratio
    noise: float
    ties: tuple[str, ...] = ()


def blocks_for(told_by: int) -> int:
    """The number of blocks of finals when ``told_by`` finals, these and known ones alike, show what noise is usual.

    The number is fixed before any block is timed. Where few finals are known, more blocks show more of each problem's
    own noise.
    """
    if told_by < FEW_TELL:
        return MOST_BLOCKS
    return BLOCKS if told_by >= USUAL_IS_KNOWN else BLOCKS + 1


def blocks_of_each(durations: Sequence[float], known: Noise) -> list[int]:
    """The number of blocks of each problem's finals, given the times of their incumbents in µs.

    All finals that are held together, and known ones of similar durations, show what noise is usual. A problem with
    fewer than ``FEW_TELL`` finals in its own decade has the most blocks: for a problem below 10 µs after 24 above
    200 µs, three blocks miss 46.0% of the gains of 2% and five 20.8%.
    """
    usual = blocks_for(len(durations) + known.finals_like(durations))
    told_by = [sum(same_decade(us, other) for other in durations) + known.finals_like([us]) for us in durations]
    return [MOST_BLOCKS if count < FEW_TELL else usual for count in told_by]


def judge(incumbent: str, challengers: Sequence[str], blocks: Sequence[Times], noise: Noise) -> Verdict:
    """The verdict on one problem's finals.

    The incumbent is replaced only if an interval, corrected for the number of challengers, excludes 1 and the gain
    exceeds the A/A noise. Otherwise the incumbent stays, as a tie where some challenger cannot be told from it.
    """
    alpha = ALPHA / max(1, len(challengers))
    entered = [name for name in challengers if sum(name in block for block in blocks) > 1]
    clear = {name: _clear_ratio(name, incumbent, blocks, alpha, noise) for name in entered}
    aa = noise.aa(median_of(incumbent, blocks))
    better = {name: ratio for name, ratio in clear.items() if ratio.high < 1 and ratio.value < 1 / (1 + aa)}
    if better:
        ratios = {name: time_ratio(name, incumbent, blocks, alpha, noise) for name in better}
        winner = min(ratios, key=lambda name: ratios[name].value)
        against = {name: _clear_ratio(name, winner, blocks, alpha, noise) for name in entered if name != winner}
        return Verdict(winner, "replaced", ratios[winner].inverse, aa, _ties(against, aa))
    own = time_ratio(INCUMBENT_COPY, incumbent, blocks, ALPHA, noise)
    ties = _ties(clear, aa)
    verdict = "kept" if entered and not ties else "tie"
    return Verdict(incumbent, verdict, Ratio(1.0, own.inverse.low, own.inverse.high), aa, ties)


def time_ratio(
    one: str,
    other: str,
    blocks: Sequence[Times],
    alpha: float,
    noise: Noise,
    *,
    clip: float = math.inf,
    elsewhere: bool = False,
) -> Ratio:
    """``one``'s time over ``other``'s: the wider of a bootstrap within blocks and a t interval over blocks.

    The variance over blocks is moderated by what is usual in ``noise`` and for this problem's entrants; the variance
    between devices of the model, for all of which the ratio is told, is added. ``elsewhere``:
    the interval is for the ratio that another process with another method of timing finds, not for the mean of all
    processes with this method. ``clip`` limits log ratios.
    """
    common = [block for block in blocks if {one, other} <= block.keys()]
    logs = [np.log(np.asarray(block[one]) / np.asarray(block[other])).clip(-clip, clip) for block in common]
    if not logs:
        return Ratio(1.0, 0.0, math.inf)
    # of ten values statistics.median takes a tenth of the time of numpy's
    medians = np.array([statistics.median(values.tolist()) for values in logs])
    centre, mean = float(np.median(medians)), float(medians.mean())
    usual = noise.prior(median_of(other, common))
    reach = _reach(medians, usual, spread_of(common, other), alpha, elsewhere=elsewhere)
    reach = math.hypot(reach, _Z(1 - alpha / 2) * math.sqrt(noise.devices))
    low, high = _bootstrap(logs, alpha)
    low, high = min(low, mean - reach, centre), max(high, mean + reach, centre)
    return Ratio(math.exp(centre), math.exp(low), math.exp(high))


def _clear_ratio(one: str, other: str, blocks: Sequence[Times], alpha: float, noise: Noise) -> Ratio:
    """The ratio, with an interval that only tells on which side of 1 the ratio lies, not how far away.

    An interval grows with the spread of the gain itself: three blocks that show a gain of 46, 5 and 36 leave no doubt
    which candidate is faster, but much about by how much.
    """
    clip = max(_CLIP, _CLIPPED * math.sqrt(spread_of([block for block in blocks if one in block], other)))
    clipped = time_ratio(one, other, blocks, alpha, noise, clip=clip)
    value = block_ratio(one, other, blocks)
    return clipped if value is None else replace(clipped, value=value)


def block_ratio(one: str, other: str, blocks: Sequence[Times]) -> float | None:
    """``one``'s time over ``other``'s without an interval; None where no block has both."""
    logs = _block_medians(one, other, blocks)
    return math.exp(statistics.median(logs)) if logs else None


def observed(incumbent: str, challengers: Sequence[str], blocks: Sequence[Times]) -> Noise:
    """The noise that the finals of one problem show.

    Of more than three blocks the first three count: noise over more blocks is smaller and could not be compared.
    """
    pairs = [block for block in blocks if {incumbent, INCUMBENT_COPY} <= block.keys()]
    if not pairs:
        return Noise()
    medians = {name: _block_medians(name, incumbent, pairs) for name in (INCUMBENT_COPY, *challengers)}
    own = medians.pop(INCUMBENT_COPY)
    first = own[:BLOCKS]
    us = median_of(incumbent, pairs)
    single = [Pair(statistics.median(block[incumbent]), math.exp(log)) for block, log in zip(pairs, own, strict=True)]
    decided = (Pair(us, math.exp(statistics.median(first))),) if len(first) == BLOCKS else ()
    variances = [(us, _variance(logs[:BLOCKS])) for logs in medians.values() if _is_near(logs[:BLOCKS])]
    return Noise(decided, tuple(single), tuple(variances), ((us, _variance(first)),) if _is_near(first) else ())


def fastest(times: Mapping[str, Sequence[float]], keep: int = FINALISTS) -> list[str]:
    """Names that go on from a pre-final, fastest median first; without any that has no times or is 3% slower."""
    medians = {name: statistics.median(times[name]) for name in times if times[name]}
    ordered = sorted(medians, key=lambda name: medians[name])[:keep]
    return [name for name in ordered if medians[name] <= BEHIND * min(medians.values())]


def median_of(name: str, blocks: Sequence[Times]) -> float:
    """An entrant's median time in µs over all rounds of all blocks."""
    return statistics.median(us for block in blocks for us in block.get(name, ()))


def _ties(against: Mapping[str, Ratio], aa: float) -> tuple[str, ...]:
    """Names of entrants that are not clearly slower than the winner, by the rule that replaces an incumbent."""
    return tuple(name for name, ratio in against.items() if not (ratio.low > 1 and ratio.value > 1 + aa))


def _is_near(medians: Sequence[float]) -> bool:
    """Whether an entrant was in three blocks and about as fast: a ratio of ten varies more than any noise."""
    return len(medians) == BLOCKS and abs(statistics.median(medians)) < _CLIP


def _variance(medians: Sequence[float]) -> float:
    return float(np.var(np.clip(medians, -_CLIP, _CLIP), ddof=1))


def _block_medians(one: str, other: str, blocks: Sequence[Times]) -> list[float]:
    return [log_ratio(block[one], block[other]) for block in blocks if {one, other} <= block.keys()]


def _reach(medians: np.ndarray, usual: Prior, spread: float, alpha: float, *, elsewhere: bool) -> float:
    """Half the width of the t interval, 0 where no variance is known; ``elsewhere`` adds the methods' deviation."""
    methods = _Z(1 - alpha / 2) * _METHODS if elsewhere else 0.0
    squares = float(((medians - medians.mean()) ** 2).sum())
    variance, freedom = moderated(squares, len(medians) - 1, usual, spread)
    if freedom < 1:
        return methods
    reach = t_quantile(1 - alpha / 2, freedom) * math.sqrt(variance * (1 / len(medians) + elsewhere))
    return math.hypot(reach, methods)


def _bootstrap(logs: Sequence[np.ndarray], alpha: float) -> tuple[float, float]:
    """The interval of the mean over blocks of the median of each, its rounds resampled."""
    drawn = []
    for block, values in enumerate(logs):
        ordered, (below, above) = np.sort(values), _middles(block, len(values))
        drawn.append((ordered[below] + ordered[above]) / 2)
    low, high = np.quantile(np.mean(drawn, axis=0), [alpha / 2, 1 - alpha / 2])
    return float(low), float(high)


@lru_cache(maxsize=64)
def _middles(seed: int, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """The places of the two middle values (their mean is the median) in resamples of ``rounds`` ordered values.

    The places that are drawn do not depend on the values, so that they are drawn once and not for every ratio.
    """
    places = np.sort(np.random.default_rng(seed).integers(rounds, size=(_RESAMPLES, rounds)), axis=1)
    return places[:, (rounds - 1) // 2], places[:, rounds // 2]
