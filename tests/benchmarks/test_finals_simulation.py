"""The simulation of decisions: on the noise that is shipped, with the rule as it is."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import finals_noisy, finals_simulation
from benchmarks.finals_noise import Measured, extract, load
from benchmarks.finals_noisy import simulate_noisy
from benchmarks.finals_simulation import (
    ALONE,
    BY_BLOCKS,
    TOGETHER_24,
    Setting,
    simulate,
    table,
    table_by_blocks,
)
from benchmarks.finals_world import Source, World
from registry.tuner.decide.judge import BLOCKS, MOST_BLOCKS, ROUNDS
from tuning_db import CandidateKey, Decision, Environment, Final, ProblemKey, Protocol, Store

from ..tiers import one_of_each

FALSE_WINS, MISSED_GAINS = 0.025, 0.32
"""What docs/tuning.md promises with some room: it has 1.7% and 26.5% at most, of three that enter."""


@pytest.fixture(scope="module")
def measured() -> Sequence[Measured]:
    environment, found = load()
    assert environment["hardware"]["name"] == "NVIDIA H200"
    return found


@pytest.fixture(scope="module")
def seeded(measured: Sequence[Measured]) -> Callable[[int], World]:
    """``World(measured, seed)``, whose sources are the same for every seed."""
    world = World(measured, 0)

    def made(seed: int) -> World:
        found = copy(world)
        found.draw = np.random.default_rng(seed)
        return found

    return made


def test_the_shipped_noise_is_that_of_whole_finals(measured: Sequence[Measured]) -> None:
    assert len(measured) > 100
    for one in measured:
        shapes = {tuple(map(len, blocks)) for blocks in (one.incumbent, one.copy, *one.challengers)}
        assert shapes == {(10,) * BLOCKS}


@pytest.mark.parametrize(("kind", "runs"), one_of_each([("twin", 10), ("twin", 20), ("real", 20)]))
@pytest.mark.thorough
def test_the_rule_keeps_its_promises_on_measured_noise(seeded: Callable[[int], World], kind: str, runs: int) -> None:
    """Of 240 or 480 decisions each; benchmarks.finals_simulation prints the rates of thousands."""
    assert simulate(seeded(3), TOGETHER_24, kind, 3, gain=False, runs=runs).rate() <= FALSE_WINS
    assert simulate(seeded(4), TOGETHER_24, kind, 3, gain=True, runs=runs).rate() <= MISSED_GAINS


@pytest.mark.thorough
def test_one_problem_alone_is_decided_as_well_in_its_more_blocks(seeded: Callable[[int], World]) -> None:
    assert simulate(seeded(3), ALONE, "real", 3, gain=False, runs=480).rate() <= FALSE_WINS
    assert simulate(seeded(4), ALONE, "real", 3, gain=True, runs=480).rate() <= MISSED_GAINS


@pytest.mark.thorough
def test_the_table_names_the_blocks_and_the_decisions(seeded: Callable[[int], World]) -> None:
    lines = table(seeded(0), 2, 1)
    assert lines[0] == f"One problem alone: {MOST_BLOCKS} blocks of {ROUNDS} rounds on average; 2 decisions a figure"
    assert len(lines) == 4 + 2 * 4


@pytest.mark.thorough
def test_each_number_of_blocks_has_its_line(measured: Sequence[Measured], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finals_simulation, "BY_BLOCKS", (BY_BLOCKS[2], BY_BLOCKS[-1]))
    lines = table_by_blocks(measured, 0, 1)
    assert len(lines) == 4 + 2
    assert lines[-1].startswith(f"| 1 below 10 µs alone, after 24 above 200 µs | {MOST_BLOCKS} | ")


@pytest.mark.thorough
def test_each_shift_has_six_rows_of_a_problem_noisier_than_its_batch(
    measured: Sequence[Measured], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finals_noisy, "SHIFTS", (0.02,))
    monkeypatch.setattr(finals_noisy, "_BATCHES", 1)
    lines = finals_noisy.table_by_shift(measured, 0, 2)
    assert lines[0] == "A problem noisier than its batch; 2 decisions a row"
    assert len(lines) == 4 + 6
    assert lines[-1].startswith("| 2% | alone | 3 | ")


@pytest.mark.thorough
@pytest.mark.parametrize("shift", [0.01, 0.05])
def test_a_noisy_problem_beside_usual_ones_is_decided_rightly(seeded: Callable[[int], World], shift: float) -> None:
    found = simulate_noisy(seeded(5), 23, 3, shift, 250)
    assert found.false_wins <= FALSE_WINS
    assert found.holds >= 0.94
    assert found.holds_elsewhere >= 0.94


@pytest.mark.thorough
def test_finals_have_the_blocks_of_a_run_unless_told(seeded: Callable[[int], World]) -> None:
    world = seeded(0)
    elsewhere = simulate(world, Setting(1, elsewhere=True), "real", 1, gain=False, runs=4)
    assert elsewhere.blocks == [MOST_BLOCKS] * 4
    assert max(elsewhere.durations) < 10
    assert simulate(world, Setting(2, 4, elsewhere=True), "real", 1, gain=False, runs=1).blocks == [4, 4]
    assert {BLOCKS, MOST_BLOCKS} <= set(simulate(world, TOGETHER_24, "twin", 1, gain=False, runs=2).blocks)


def test_noise_is_drawn_from_the_first_three_blocks_of_finals_of_more(measured: Sequence[Measured]) -> None:
    short = measured[0]
    other = tuple((us * 2,) * len(short.copy[0]) for us in (1.0, 2.0))
    longer = replace(
        short,
        incumbent=(*short.incumbent, *other),
        copy=(*short.copy, *other),
        challengers=tuple((*blocks, *other) for blocks in short.challengers),
    )
    (source,) = World([longer], 0).sources
    expected = Source.of(short)
    assert source.us == expected.us
    assert np.array_equal(source.twin, expected.twin)
    assert np.array_equal(source.challengers, expected.challengers)


def test_the_simulation_sees_a_rule_that_is_too_eager(
    seeded: Callable[[int], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.tuner.decide.judge.ALPHA", 0.9)
    monkeypatch.setattr("registry.tuner.decide.noise.Noise.aa", lambda self, us: 0.0)
    assert simulate(seeded(3), TOGETHER_24, "real", 3, gain=False, runs=1).rate() > 0.2


def test_noise_is_extracted_from_a_database(tmp_path: Path) -> None:
    environment = Environment({"name": "some GPU"}, {"torch": "2.11"})
    winner, other = CandidateKey("a.a", "f", {}), CandidateKey("b.b", "f", {})
    problem = ProblemKey("square", 1, {"n": 8})
    with Store.open(tmp_path / "some.db") as store:
        finals = [
            Final(candidate, role, block, turn, 0, 10.0 + turn)  # type: ignore[arg-type]
            for block in range(BLOCKS)
            for candidate, role in ((winner, "candidate"), (winner, "copy"), (other, "candidate"), (None, "floor"))
            for turn in range(2)
        ]
        late = Final(CandidateKey("c.c", "f", {}), "candidate", 0, 0, 0, 5.0)
        decision = Decision(problem, environment, Protocol("cold"), winner, 10.0)
        store.publish(store.start_run(environment), decision, [*finals, late])
    content = extract([str(tmp_path / "some.db")])
    assert content["environment"] == {"hardware": {"name": "some GPU"}, "software": {"torch": "2.11"}}
    path = tmp_path / "noise.json.gz"
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    ((_, (found,)),) = [load(path)]
    assert found.incumbent == found.copy == ((10.0, 11.0),) * BLOCKS
    assert found.challengers == (((10.0, 11.0),) * BLOCKS,)
