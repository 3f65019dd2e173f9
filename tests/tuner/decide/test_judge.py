"""The decision: real differences win, noise does not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from registry.tuner.decide.judge import (
    ALPHA,
    BLOCKS,
    FEW_TELL,
    INCUMBENT_COPY,
    MOST_BLOCKS,
    ROUNDS,
    USUAL_IS_KNOWN,
    Ratio,
    block_ratio,
    blocks_for,
    blocks_of_each,
    fastest,
    judge,
    observed,
    time_ratio,
)
from registry.tuner.decide.noise import Noise, Pair

NOTHING_KNOWN = Noise()
QUIET = Noise(single=(Pair(20.0, 1.001),) * 10)


def noise_of(relative: float) -> Noise:
    return Noise(single=(Pair(20.0, 1 + relative),) * 10)


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


def batch_of(seed: int, count: int, speed: dict[str, float]) -> tuple[list[list[dict[str, list[float]]]], Noise]:
    """The finals of several problems, and what they show of noise together."""
    generator = np.random.default_rng(seed)
    batch = [blocks_of(generator, speed, 0.012, 0.004) for _ in range(count)]
    challengers = [name for name in speed if name != "incumbent"]
    return batch, sum((observed("incumbent", challengers, blocks) for blocks in batch), Noise())


def test_a_clear_gain_replaces_the_incumbent_and_the_interval_holds_the_truth() -> None:
    batch, noise = batch_of(1, 50, {"incumbent": 1.0, "better": 1.2})
    verdicts = [judge("incumbent", ["better"], blocks, noise) for blocks in batch]
    assert {verdict.verdict for verdict in verdicts} == {"replaced"}
    assert sum(verdict.ratio.low <= 1.2 <= verdict.ratio.high for verdict in verdicts) >= 46


def test_a_gain_of_two_percent_is_seldom_missed_in_a_batch() -> None:
    batch, noise = batch_of(2, 60, {"incumbent": 1.0, "better": 1.02, "equal": 1.0})
    winners = [judge("incumbent", ["better", "equal"], blocks, noise).winner for blocks in batch]
    assert winners.count("better") >= 48
    assert winners.count("equal") == 0


def test_what_is_usual_in_the_batch_decides_what_three_blocks_alone_cannot() -> None:
    batch, noise = batch_of(3, 40, {"incumbent": 1.0, "better": 1.02, "equal": 1.0})
    alone = [judge("incumbent", ["better", "equal"], blocks, QUIET).winner for blocks in batch]
    together = [judge("incumbent", ["better", "equal"], blocks, noise).winner for blocks in batch]
    assert together.count("better") > alone.count("better") + 5


def test_three_blocks_that_agree_by_chance_are_no_proof() -> None:
    times = {"incumbent": [20.0] * ROUNDS, INCUMBENT_COPY: [20.0] * ROUNDS, "lucky": [19.7] * ROUNDS}
    usual = Noise(single=QUIET.single, variances=((20.0, 0.012**2),) * 20)
    assert judge("incumbent", ["lucky"], [times] * BLOCKS, QUIET).winner == "lucky"
    assert judge("incumbent", ["lucky"], [times] * BLOCKS, usual).winner == "incumbent"


def test_a_huge_gain_wins_however_much_it_varies() -> None:
    blocks = [
        {"incumbent": [20.0 * gain] * ROUNDS, INCUMBENT_COPY: [20.0 * gain] * ROUNDS, "fast": [20.0] * ROUNDS}
        for gain in (46.0, 5.0, 36.0)
    ]
    verdict = judge("incumbent", ["fast"], blocks, QUIET)
    assert (verdict.winner, verdict.verdict) == ("fast", "replaced")
    assert verdict.ratio.value == pytest.approx(36.0)


def test_what_is_far_away_does_not_say_what_is_usual() -> None:
    """Challengers that are 5 to 20 times slower, as they happen to be, are no ties."""
    generator = np.random.default_rng(8)
    batch = [
        [
            {
                "incumbent": [20.0] * ROUNDS,
                INCUMBENT_COPY: list(20.0 * np.exp(generator.normal(0, 0.003, ROUNDS))),
                "slow": [20.0 * generator.uniform(5, 20)] * ROUNDS,
            }
            for _ in range(BLOCKS)
        ]
        for _ in range(12)
    ]
    noise = sum((observed("incumbent", ["slow"], blocks) for blocks in batch), Noise())
    assert {judge("incumbent", ["slow"], blocks, noise).verdict for blocks in batch} == {"kept"}


def test_without_its_own_copy_the_incumbent_has_no_upper_bound() -> None:
    blocks = [{"incumbent": [20.0] * ROUNDS, "slow": [40.0] * ROUNDS}] * BLOCKS
    verdict = judge("incumbent", ["slow"], blocks, NOTHING_KNOWN)
    assert (verdict.winner, verdict.verdict, verdict.ratio.high) == ("incumbent", "kept", math.inf)


def test_equal_challengers_are_ties() -> None:
    speed = {"incumbent": 1.0, "one": 1.0, "two": 1.0, "three": 1.0}
    batch, noise = batch_of(4, 120, speed)
    verdicts = [judge("incumbent", ["one", "two", "three"], blocks, noise) for blocks in batch]
    assert sum(verdict.winner != "incumbent" for verdict in verdicts) <= 3
    stayed = [verdict for verdict in verdicts if verdict.winner == "incumbent"]
    assert all(verdict.ratio.value == 1.0 for verdict in stayed)
    assert sum(verdict.ties == ("one", "two", "three") for verdict in stayed) > 100


def test_a_tie_names_who_cannot_be_told_from_the_winner_and_nobody_else() -> None:
    base = {"incumbent": [20.0] * ROUNDS, INCUMBENT_COPY: [20.0] * ROUNDS, "slow": [25.0] * ROUNDS}
    verdict = judge("incumbent", ["same", "slow"], [{**base, "same": [20.01] * ROUNDS}] * BLOCKS, QUIET)
    assert (verdict.winner, verdict.verdict, verdict.ties) == ("incumbent", "tie", ("same",))
    fast = {**base, "fast": [15.0] * ROUNDS, "near": [15.01] * ROUNDS}
    verdict = judge("incumbent", ["near", "slow", "fast"], [fast] * BLOCKS, QUIET)
    assert (verdict.winner, verdict.verdict, verdict.ties) == ("fast", "replaced", ("near",))


def test_a_gain_that_is_smaller_than_the_difference_between_devices_is_a_tie() -> None:
    batch, noise = batch_of(1, 24, {"incumbent": 1.0, "better": 1.05})
    assert {judge("incumbent", ["better"], blocks, noise).verdict for blocks in batch} == {"replaced"}
    apart = noise + Noise(devices=0.05**2)
    assert apart.devices == 0.05**2
    found = [judge("incumbent", ["better"], blocks, apart) for blocks in batch]
    assert {verdict.verdict for verdict in found} == {"tie"}
    assert all(verdict.ties == ("better",) for verdict in found)
    assert (apart + noise).devices == apart.devices
    assert "devices" not in apart.details


def test_a_gain_within_the_noise_is_a_tie() -> None:
    blocks = [{"incumbent": [20.0] * ROUNDS, INCUMBENT_COPY: [20.0] * ROUNDS, "one": [19.9] * ROUNDS}] * BLOCKS
    assert judge("incumbent", ["one"], blocks, noise_of(0.01)).winner == "incumbent"
    assert judge("incumbent", ["one"], blocks, noise_of(0.001)).winner == "one"


def test_a_gain_far_beyond_great_noise_wins_and_a_loss_is_no_tie() -> None:
    blocks = [
        {
            "incumbent": [20.0] * ROUNDS,
            INCUMBENT_COPY: [20.0] * ROUNDS,
            "half": [10.0] * ROUNDS,
            "twice": [40.0] * ROUNDS,
        }
    ] * BLOCKS
    verdict = judge("incumbent", ["half", "twice"], blocks, noise_of(0.5))
    assert (verdict.winner, verdict.ties) == ("half", ())
    verdict = judge("incumbent", ["twice"], blocks, noise_of(0.5))
    assert (verdict.verdict, verdict.ties) == ("kept", ())


def test_more_challengers_need_stronger_evidence() -> None:
    generator = np.random.default_rng(5)
    blocks = blocks_of(generator, {"incumbent": 1.0, "one": 1.0}, 0.01, 0.005)
    ratios = [time_ratio("one", "incumbent", blocks, ALPHA / count, NOTHING_KNOWN) for count in (1, 2, 3)]
    widths = [ratio.high / ratio.low for ratio in ratios]
    assert widths == sorted(widths)


def test_a_challenger_seen_in_one_process_only_cannot_win() -> None:
    both = {"incumbent": [20.0] * ROUNDS, INCUMBENT_COPY: [20.0] * ROUNDS}
    blocks = [{**both, "lucky": [10.0] * ROUNDS}, both, both]
    assert judge("incumbent", ["lucky"], blocks, QUIET).winner == "incumbent"


def test_a_remeasurement_is_expected_farther_away_than_the_mean() -> None:
    generator = np.random.default_rng(6)
    inside = 0
    for _ in range(100):
        blocks = blocks_of(generator, {"incumbent": 1.0, "one": 1.3}, 0.002, 0.005)
        mean = time_ratio("one", "incumbent", blocks, 0.05, NOTHING_KNOWN)
        again = time_ratio("one", "incumbent", blocks, 0.05, NOTHING_KNOWN, elsewhere=True)
        assert again.low <= mean.low < mean.high <= again.high
        bias = math.exp(generator.normal(0.0, 0.0055))
        another = blocks_of(generator, {"incumbent": 1.0, "one": 1.3 * bias}, 0.002, 0.005)[0]
        inside += again.low <= np.median(np.divide(another["one"], another["incumbent"])) <= again.high
    assert inside >= 90


def test_blocks_that_agree_do_not_make_another_method_agree() -> None:
    steady = {"incumbent": [20.0] * ROUNDS, INCUMBENT_COPY: [20.0] * ROUNDS, "one": [26.0] * ROUNDS}
    mean, again = (
        time_ratio("one", "incumbent", [steady] * 3, ALPHA, QUIET, elsewhere=elsewhere) for elsewhere in (False, True)
    )
    assert mean.high / mean.low < 1.005
    assert 1.02 < again.high / again.low < 1.025
    alone = time_ratio("one", "incumbent", [steady], ALPHA, Noise(), elsewhere=True)
    assert 1.02 < alone.high / alone.low < 1.025, "also where nothing is known of processes"


def test_what_finals_show_of_noise() -> None:
    base = {"incumbent": [20.0] * 4, "far": [40.0] * 4, "near": [21.0] * 4}
    blocks = [{**base, INCUMBENT_COPY: [20.0 * shift] * 4} for shift in (1.01, 0.99, 1.02)]
    noise = observed("incumbent", ["far", "absent", "near"], blocks)
    assert [pair.ratio for pair in noise.single] == pytest.approx([1.01, 0.99, 1.02])
    assert [pair.ratio for pair in noise.decided] == pytest.approx([1.01])
    assert noise.variances == ((20.0, 0.0),)
    ((us, variance),) = noise.copies
    assert us == 20.0
    assert variance == pytest.approx(float(np.var(np.log([1.01, 0.99, 1.02]), ddof=1)))
    assert observed("incumbent", ["far"], blocks[:2]).decided == ()
    assert observed("incumbent", ["far"], [base]) == Noise()


def test_finals_of_more_blocks_show_the_noise_of_three() -> None:
    base = {"incumbent": [20.0] * 4, "near": [21.0] * 4}
    blocks = [{**base, INCUMBENT_COPY: [20.0 * shift] * 4} for shift in (1.01, 0.99, 1.02, 1.04, 1.05)]
    three, five = (observed("incumbent", ["near"], some) for some in (blocks[:3], blocks))
    assert (five.decided, five.variances, five.copies) == (three.decided, three.variances, three.copies)
    assert [pair.ratio for pair in five.single] == pytest.approx([1.01, 0.99, 1.02, 1.04, 1.05])


def test_more_blocks_are_held_where_few_finals_tell_what_noise_is_usual() -> None:
    assert {blocks_for(told_by) for told_by in range(1, FEW_TELL)} == {MOST_BLOCKS}
    assert {blocks_for(told_by) for told_by in range(FEW_TELL, USUAL_IS_KNOWN)} == {BLOCKS + 1}
    assert {blocks_for(told_by) for told_by in (USUAL_IS_KNOWN, 64, 1000)} == {BLOCKS}


def known(us: float, count: int) -> Noise:
    return Noise(decided=(Pair(us, 1.0),) * count)


@pytest.mark.parametrize(
    ("durations", "earlier", "blocks"),
    [
        ([100.0] * USUAL_IS_KNOWN, Noise(), [BLOCKS] * USUAL_IS_KNOWN),
        ([100.0] * FEW_TELL, Noise(), [BLOCKS + 1] * FEW_TELL),
        ([5.0], known(500.0, 24), [MOST_BLOCKS]),
        ([5.0, 500.0], known(500.0, 24), [MOST_BLOCKS, BLOCKS]),
        ([5.0] + [500.0] * 23, Noise(), [MOST_BLOCKS] + [BLOCKS] * 23),
        ([5.0] * FEW_TELL + [500.0] * 20, Noise(), [BLOCKS] * 24),
        ([5.0] * 2 + [500.0] * 22, known(6.0, FEW_TELL - 2), [BLOCKS] * 24),
        ([5.0] * 2 + [500.0] * 22, known(6.0, FEW_TELL - 3), [MOST_BLOCKS] * 2 + [BLOCKS] * 22),
        ([], known(5.0, 24), []),
        # what was imported may say anything
        ([5.0, 0.0, -1.0], Noise(), [MOST_BLOCKS] * 3),
    ],
)
def test_a_problem_has_more_blocks_where_few_finals_of_its_own_decade_tell(
    durations: list[float], earlier: Noise, blocks: list[int]
) -> None:
    assert blocks_of_each(durations, earlier) == blocks


def test_a_pre_final_keeps_the_fastest_that_ran() -> None:
    times = {"a": [1.02, 1.02], "b": [], "c": [1.0, 9.0, 1.0], "d": [1.01], "e": [1.005]}
    assert fastest(times, keep=3) == ["c", "e", "d"]


def test_who_is_behind_in_a_pre_final_does_not_go_on() -> None:
    assert fastest({"a": [1.0], "b": [1.02], "c": [1.04]}, keep=3) == ["a", "b"]
    assert fastest({"b": []}) == []


def test_a_ratio_without_common_blocks_is_unknown() -> None:
    apart = [{"one": [1.0]}, {"other": [1.0]}]
    assert time_ratio("one", "other", apart, 0.05, NOTHING_KNOWN) == Ratio(1.0, 0.0, math.inf)
    assert block_ratio("one", "other", apart) is None
