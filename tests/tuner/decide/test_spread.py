"""A problem's own noise, by all its entrants: known variances, and decisions about it by simulation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from registry.tuner.decide.judge import BLOCKS, INCUMBENT_COPY, judge, time_ratio
from registry.tuner.decide.noise import Noise, Pair, Prior
from registry.tuner.decide.spread import moderated, spread_of

from ...tiers import one_of_each

NAMES = ("incumbent", INCUMBENT_COPY, "one", "other")
QUIET = Noise(
    decided=(Pair(100.0, 1.002),) * 24,
    variances=tuple((100.0, 2 * 0.003**2 * factor) for factor in (0.3, 0.7, 1.4) * 8),
)
"""Of 24 problems whose processes shift a time by 0.3%."""


def drawn(seed: int, shift: float, blocks: int = BLOCKS, gains: Mapping[str, float] | None = None) -> list[
    dict[str, Sequence[float]]
]:  # fmt: skip
    draw = np.random.default_rng(seed)
    return [
        {
            name: (100 / (gains or {}).get(name, 1.0) * np.exp(draw.normal(draw.normal(0, shift), 0.002, 9))).tolist()
            for name in NAMES
        }
        for _ in range(blocks)
    ]


def test_the_spread_is_that_of_a_ratio_whatever_blocks_and_entrants_have_in_common() -> None:
    found = [spread_of(drawn(seed, 0.03), "incumbent") for seed in range(200)]
    assert np.mean(found) == pytest.approx(2 * 0.03**2, rel=0.1)
    blocks = drawn(1, 0.03)
    faster = [{name: [us / 1.3 for us in times] if name == "one" else times for name, times in block.items()}
              for block in blocks]  # fmt: skip
    slower = [{name: [us * (1 + place) for us in times] for name, times in block.items()}
              for place, block in enumerate(blocks)]  # fmt: skip
    for other in (faster, slower):
        assert spread_of(other, "incumbent") == pytest.approx(spread_of(blocks, "incumbent"))


def test_who_is_far_away_and_who_missed_a_block_tell_nothing_of_the_spread() -> None:
    blocks = drawn(2, 0.02)
    expected = spread_of(blocks, "incumbent")
    beside = [{**block, "far": [10.0 ** (3 + place)] * 9} for place, block in enumerate(blocks)]
    beside[0]["floor"] = [50.0] * 9
    assert spread_of(beside, "incumbent") == pytest.approx(expected)
    pair = [{name: block[name] for name in ("incumbent", INCUMBENT_COPY)} for block in blocks]
    assert spread_of(pair, "incumbent") == spread_of(blocks[:1], "incumbent") == spread_of([], "incumbent") == 0.0


def test_a_usual_spread_leaves_the_usual_variance_and_an_unusual_one_takes_its_place() -> None:
    usual = Prior(1.0, 2.6)
    assert moderated(1.0, 2, usual, 3.0) == ((1.0 + 2.6) / 4.6, 4.6)
    variance, freedom = moderated(1.0, 2, usual, 400.0)
    assert freedom == pytest.approx(2 + 1 + 1.6 * math.sqrt(4 / 400))
    assert variance == pytest.approx((1.0 + 400 * (freedom - 2)) / freedom)
    assert moderated(4000.0, 2, usual, 400.0)[0] == 2000.0
    assert moderated(1.0, 2, Prior(0.0, 0.0), 0.0) == (0.5, 2.0)


@pytest.mark.parametrize("shift", one_of_each([0.003, 0.01, 0.02, 0.05]))
@pytest.mark.thorough
def test_a_problem_noisier_than_its_batch_is_decided_rightly(shift: float) -> None:
    """Of 400 decisions each; benchmarks.finals_simulation has thousands, with measured noise."""
    wrong, held = 0, 0
    for seed in range(400):
        blocks = drawn(seed, shift)
        wrong += judge("incumbent", ["one", "other"], blocks, QUIET).winner != "incumbent"
        ratio = time_ratio("one", "incumbent", blocks, 0.04, QUIET)
        held += ratio.low <= 1 <= ratio.high
    assert wrong / 400 <= 0.025
    assert held / 400 >= 0.94


def test_a_gain_far_beyond_a_problems_noise_wins_in_it() -> None:
    won = [judge("incumbent", ["one", "other"], drawn(seed, 0.05, gains={"one": 2.0}), QUIET).winner
           for seed in range(60)]  # fmt: skip
    assert won.count("one") >= 57
