"""The simulation of decisions: on the noise that is shipped, with the rule as it is."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.finals_noise import Measured, extract, load
from benchmarks.finals_simulation import World, simulate, table
from registry.tuner.finals import BLOCKS, MOST_BLOCKS, ROUNDS
from tuning_db import CandidateKey, Decision, Environment, Final, ProblemKey, Protocol, Store


@pytest.fixture(scope="module")
def measured() -> Sequence[Measured]:
    environment, found = load()
    assert environment["hardware"]["name"] == "NVIDIA H200"
    return found


def test_the_shipped_noise_is_that_of_whole_finals(measured: Sequence[Measured]) -> None:
    assert len(measured) > 100
    for one in measured:
        shapes = {tuple(map(len, blocks)) for blocks in (one.incumbent, one.copy, *one.challengers)}
        assert shapes == {(10,) * BLOCKS}


@pytest.mark.parametrize("kind", ["twin", "real"])
def test_the_rule_keeps_its_promises_on_measured_noise(measured: Sequence[Measured], kind: str) -> None:
    """Of 48 decisions each; benchmarks.finals_simulation prints the rates of thousands."""
    assert simulate(World(measured, 3), kind, 3, gain=False, runs=2).rate() <= 0.03
    assert simulate(World(measured, 4), kind, 3, gain=True, runs=2).rate() <= 0.2


@pytest.mark.parametrize("kind", ["twin", "real"])
def test_one_problem_alone_is_decided_as_well_in_its_more_blocks(measured: Sequence[Measured], kind: str) -> None:
    assert simulate(World(measured, 3), kind, 3, gain=False, runs=48, problems=1).rate() <= 0.03
    assert simulate(World(measured, 4), kind, 3, gain=True, runs=48, problems=1).rate() <= 0.2


def test_the_table_names_the_blocks_and_the_decisions(measured: Sequence[Measured]) -> None:
    lines = table(World(measured, 0), 2, 1)
    assert lines[0] == f"One problem alone: {MOST_BLOCKS} blocks of {ROUNDS} rounds; 2 decisions a figure"
    assert len(lines) == 4 + 2 * 4


def test_the_simulation_sees_a_rule_that_is_too_eager(
    measured: Sequence[Measured], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.tuner.finals.ALPHA", 0.9)
    monkeypatch.setattr("registry.tuner.noise.Noise.aa", lambda self, us: 0.0)
    assert simulate(World(measured, 3), "real", 3, gain=False, runs=1).rate() > 0.2


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
