"""Landscapes: the file keeps them, the exporter takes what was tried whole, a replay tells good searches from bad."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from benchmarks.landscapes import synthetic
from benchmarks.landscapes.chart import chart
from benchmarks.landscapes.export import landscapes, noise_of
from benchmarks.landscapes.format import File, files, load, save
from benchmarks.landscapes.replay import Replay
from benchmarks.landscapes.replaying import alone, together
from benchmarks.landscapes.strategies import Exhaustive, Random, ours, tpe
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.problem import Value
from registry.tuner.planning.problems import plan
from tuning_db import CandidateKey, Environment, ProblemKey, Protocol, Store, Trial

KEPT = Path(__file__).parents[2] / "benchmarks" / "landscapes"
DIMS: dict[str, Value] = {"rows": 64, "cols": 1000, "dtype": "float32"}


def trials_of_everything() -> list[Trial]:
    """A trial of every candidate of one problem that runs on this CPU."""
    catalog, device = Catalog(), Device.of("cpu")
    op = catalog.op("softmax")
    (planned,) = plan([op.problem_of(DIMS)], catalog, device)
    key = ProblemKey(op.name, op.version, dict(DIMS), tuple(sorted(op.static)))
    environment = Environment(device.hardware(), {"torch": "2"})
    return [
        Trial(
            key,
            CandidateKey(choice.implementation.name, "f", dict(config)),
            environment,
            Protocol("cold", {"cache_bytes": 1}),
            status="ok",
            median_us=10.0 + number,
        )
        for choice in planned.supported
        for number, config in enumerate(choice.configs)
    ]


def test_a_file_keeps_everything(tmp_path: Path) -> None:
    whole = (synthetic.rows(64, 1024), synthetic.matmul(256, 256, 256))
    file = File(whole, {"name": "model"}, {"torch": "2"}, {"regime": "cold"})
    save(tmp_path / "x.json.gz", file)
    again = load(tmp_path / "x.json.gz")
    assert (again.hardware, again.software, again.protocol) == (file.hardware, file.software, file.protocol)
    for one, other in zip(again.landscapes, whole, strict=True):
        assert (one.name, one.size, one.noise) == (other.name, other.size, other.noise)
        assert one.best_us == pytest.approx(other.best_us, rel=1e-5)
        assert [choice.domains for choice in one.choices] == [choice.domains for choice in other.choices]
    save(tmp_path / "y.json.gz", file)
    assert (tmp_path / "x.json.gz").read_bytes() == (tmp_path / "y.json.gz").read_bytes()


def test_a_problem_that_was_tried_whole_is_exported_with_its_defaults() -> None:
    trials = trials_of_everything()
    (found,) = landscapes(trials, Device.of("cpu"), Catalog(), 0.01)
    assert found.size == len(trials) > 1
    assert found.best_us == 10.0
    assert all(choice.default in {point.places for point in choice.points} for choice in found.choices)


def test_a_problem_with_an_untried_candidate_is_left_out_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert landscapes(trials_of_everything()[:-1], Device.of("cpu"), Catalog(), 0.01) == []
    assert "1 of" in capsys.readouterr().out


def test_noise_is_unknown_without_finals(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store:
        assert noise_of(store) is None


@pytest.mark.parametrize("path", files(KEPT), ids=lambda path: path.name)
@pytest.mark.few(1)
def test_the_measured_landscapes_are_whole(path: Path) -> None:
    file = load(path)
    assert file.hardware["name"]
    for landscape in file.landscapes:
        replay = Replay(landscape)
        assert replay.plan.candidates == landscape.size
        assert 0 < landscape.noise < 0.02
        assert replay.regret(landscape.best_us * (1 + landscape.noise / 2)) == 0
        assert replay.regret(landscape.best_us * 1.5) == pytest.approx(0.5)


# tests/tuner/search has what random sampling misses
@pytest.mark.thorough
@pytest.mark.parametrize("seeds", [2, 4])
def test_the_default_search_beats_random_and_plain_tpe(seeds: int) -> None:
    replay = Replay(synthetic.matmul(512, 8192, 4096, seed=1))
    after = {
        name: [
            [alone(replay, make(replay.plan, seed), 60).after(trials) for trials in (25, 60)] for seed in range(seeds)
        ]
        for name, make in {"ours": ours, "random": Random, "tpe": tpe}.items()
    }
    for index in (0, 1):
        middle = {name: statistics.mean(run[index] for run in runs) for name, runs in after.items()}
        assert middle["ours"] < middle["random"]
        assert middle["ours"] < middle["tpe"]


@pytest.mark.thorough
def test_shared_variants_cost_no_trial_and_the_search_stops_by_itself() -> None:
    replays = [Replay(synthetic.matmul(m, 4096, 4096, seed=m)) for m in (512, 1024)]
    curves = together(replays, 60, 0, share=True, stop=True)
    assert all(curve.told > 10 for curve in curves)
    assert all(curve.stop <= 60 for curve in curves)
    assert statistics.mean(curve.after(curve.stop) for curve in curves) < 0.05


def test_exhaustive_search_ends_at_the_optimum() -> None:
    replay = Replay(synthetic.rows(4096, 4096))
    curve = alone(replay, Exhaustive(replay.plan, 0), 10_000)
    assert len(curve.regrets) == replay.landscape.size
    assert curve.regrets[-1] == 0
    assert curve.regrets == sorted(curve.regrets, reverse=True)


def test_the_chart_is_one_svg_with_every_curve() -> None:
    text = chart("Regret", {"ours": [0.3, 0.1, 0.0], "<random>": [0.5, 0.4]}, 0.3)
    assert text.startswith("<svg ")
    assert text.count("<polyline") == 2
    assert "&lt;random&gt;" in text
