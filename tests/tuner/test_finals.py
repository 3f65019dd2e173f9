"""The decision: real differences win, noise does not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from registry.tuner.finals import BLOCKS, INCUMBENT_COPY, ROUNDS, aa_noise, judge, t_quantile, time_ratio


def blocks_of(
    generator: np.random.Generator, speed: dict[str, float], within: float, between: float
) -> list[dict[str, list[float]]]:
    """Times around 20 µs / speed: noise from round to round and a shift from process to process."""
    return [
        {
            name: list(20.0 / factor * np.exp(generator.normal(generator.normal(0, between), within, ROUNDS)))
            for name, factor in {**speed, INCUMBENT_COPY: speed["incumbent"]}.items()
        }
        for _ in range(BLOCKS)
    ]


def test_a_clear_gain_replaces_the_incumbent_and_the_interval_holds_the_truth() -> None:
    generator = np.random.default_rng(1)
    verdicts = [
        judge("incumbent", ["better"], blocks_of(generator, {"incumbent": 1.0, "better": 1.2}, 0.004, 0.002), 0.01)
        for _ in range(50)
    ]
    assert sum(verdict.verdict == "replaced" for verdict in verdicts) >= 45
    assert sum(verdict.ratio.low <= 1.2 <= verdict.ratio.high for verdict in verdicts) >= 45


def test_a_huge_gain_wins_however_much_it_varies() -> None:
    blocks = [
        {"incumbent": [20.0 * gain] * ROUNDS, INCUMBENT_COPY: [20.0 * gain] * ROUNDS, "fast": [20.0] * ROUNDS}
        for gain in (46.0, 5.0, 36.0)
    ]
    verdict = judge("incumbent", ["fast"], blocks, 0.01)
    assert (verdict.winner, verdict.verdict) == ("fast", "replaced")
    assert verdict.ratio.value == pytest.approx(36.0)


def test_without_its_own_copy_the_incumbent_has_no_upper_bound() -> None:
    blocks = [{"incumbent": [20.0] * ROUNDS, "slow": [40.0] * ROUNDS}] * BLOCKS
    verdict = judge("incumbent", ["slow"], blocks, 0.0)
    assert (verdict.winner, verdict.verdict, verdict.ratio.high) == ("incumbent", "kept", math.inf)


def test_equal_challengers_are_ties() -> None:
    generator = np.random.default_rng(2)
    speed = {"incumbent": 1.0, "one": 1.0, "two": 1.0, "three": 1.0}
    verdicts = [
        judge("incumbent", ["one", "two", "three"], blocks_of(generator, speed, 0.004, 0.005), 0.01) for _ in range(200)
    ]
    assert sum(verdict.winner != "incumbent" for verdict in verdicts) <= 5
    assert all(verdict.ratio.value == 1.0 for verdict in verdicts if verdict.winner == "incumbent")


def test_a_gain_within_the_noise_is_a_tie() -> None:
    blocks = [{"incumbent": [20.0] * ROUNDS, INCUMBENT_COPY: [20.0] * ROUNDS, "one": [19.9] * ROUNDS}] * BLOCKS
    assert judge("incumbent", ["one"], blocks, 0.01).winner == "incumbent"
    assert judge("incumbent", ["one"], blocks, 0.001).winner == "one"


def test_a_challenger_seen_in_one_process_only_cannot_win() -> None:
    both = {"incumbent": [20.0] * ROUNDS, INCUMBENT_COPY: [20.0] * ROUNDS}
    blocks = [{**both, "lucky": [10.0] * ROUNDS}, both, both]
    assert judge("incumbent", ["lucky"], blocks, 0.0).winner == "incumbent"


@pytest.mark.parametrize(
    ("probability", "freedom", "known"), [(0.975, 1, 12.706), (0.975, 2, 4.303), (0.995, 2, 9.925)]
)
def test_quantiles_of_student_t(probability: float, freedom: int, known: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(known, abs=1e-3)


def test_noise_is_taken_from_pairs_of_the_same_duration() -> None:
    pairs = [(20.0, 1.02)] * 12 + [(2000.0, 1.0)] * 12
    assert aa_noise(pairs, 25.0) == pytest.approx(0.02, abs=1e-6)
    assert aa_noise(pairs, 1500.0) == pytest.approx(0.0, abs=1e-6)
    assert aa_noise([], 10.0) == 0.0


def test_a_ratio_without_common_blocks_is_unknown() -> None:
    ratio = time_ratio("one", "other", [{"one": [1.0]}, {"other": [1.0]}], 0.05)
    assert (ratio.value, ratio.low, ratio.high) == (1.0, 0.0, math.inf)
