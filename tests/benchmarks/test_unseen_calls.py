"""Calls of unseen sizes: the problems are unseen, and a comparison finds what a call runs and what it costs."""

from __future__ import annotations

from pathlib import Path

import pytest

import registry
from benchmarks import unseen_calls, unseen_shapes
from registry import Device, Value
from registry.tuner.shapes.shapes import read_shapes
from tuning_db import CandidateKey, Decision, Environment, ProblemKey, Protocol, Store

CPU = Device.of("cpu")


def test_no_problem_was_seen_and_some_have_seen_neighbours() -> None:
    catalog = registry.api.dispatcher.catalog
    files = ["unseen_seen.yaml", "unseen_calls.yaml"]
    seen, own = (read_shapes(unseen_calls.HERE / "shapes" / each, catalog).all for each in files)
    assert not {*map(str, seen)} & {*map(str, own)}
    sizes = {int(each.m) for each in own if each.op == "gemm_int4" and each.n == 12288}
    assert sizes == {24, 48, 96, 128, 192, 384, 512, 1024, 2048}
    assert {int(each.cols) for each in own if each.op == "softmax"} == {6000, 50257, 262144}
    widths = {(each.n, each.k) for each in seen if each.op == "gemm_int4"}
    assert {(each.n, each.k) in widths for each in own if each.op == "gemm_int4"} == {True, False}


def publish(file: Path, implementation: str, *shapes: tuple[int, int], baselines: dict[str, float]) -> str:
    (found,) = (each for each in registry.implementations("softmax") if each.name == implementation)
    environment = Environment(CPU.hardware(), CPU.software())
    config: dict[str, Value] = {"unroll": 4, "recompute": False, "stream": False, "threads": 1}
    with Store.open(file) as store:
        for rows, cols in shapes:
            dims: dict[str, Value] = {"rows": rows, "cols": cols, "dtype": "float32"}
            decision = Decision(
                problem=ProblemKey("softmax", registry.ops()["softmax"].version, dims, ("cols", "dtype")),
                environment=environment,
                protocol=Protocol("cold"),
                candidate=CandidateKey(implementation, found.fingerprint(), config if "cpp" in implementation else {}),
                median_us=10.0,
                baselines=baselines,
            )
            store.publish(store.start_run(environment), decision)
    return str(file)


@pytest.mark.thorough
def test_a_call_is_raced_against_the_own_winner_and_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unseen_shapes, "ROUNDS", 5)
    seen = publish(tmp_path / "seen.db", "torch.compile", (64, 512), baselines={"torch.native": 1.4, "cpp.rows": 9.0})
    own = publish(tmp_path / "own.db", "cpp.rows", (40, 512), (3, 100), baselines={})
    try:
        near, far = sorted(unseen_calls.compare(seen, own, CPU), key=lambda row: "cols=100," in row.problem)
    finally:
        registry.configure(database=None)
    assert near.ran["eager"] == "nearest: torch.native"
    assert far.ran["eager"].startswith("default: ")
    for row in (near, far):
        assert set(row.times) == {"eager", "own", "torch"}
        assert row.over_own("eager") == row.times["eager"] / row.times["own"]
        assert row.over_own("captured") is None
    text = unseen_calls.report([near, far])
    assert "times the own winner's time in the median (target 1.05)" in text
    assert unseen_calls.figures([near, far], "captured") is None
