"""Unseen problems: the lists are what they claim, and a comparison finds what dispatch runs and what it costs."""

from __future__ import annotations

from pathlib import Path

import pytest

import registry
from benchmarks import unseen_shapes
from registry import Device, Problem, Value
from registry.tuner.shapes.shapes import read_shapes
from tuning_db import CandidateKey, Decision, Environment, ProblemKey, Protocol, Store

CPU = Device.of("cpu")
FAST: dict[str, Value] = {"unroll": 4, "recompute": False, "stream": False, "threads": 1}
SLOW: dict[str, Value] = {"unroll": 2, "recompute": True, "stream": False, "threads": 1}


def problems(name: str) -> list[Problem]:
    return list(read_shapes(unseen_shapes.HERE / "shapes" / name, registry.api.dispatcher.catalog).all)


def test_thirty_problems_that_were_not_seen_have_seen_neighbours() -> None:
    seen, own = problems("unseen_seen.yaml"), problems("unseen_own.yaml")
    assert len(own) == 30
    assert not {*map(str, seen)} & {*map(str, own)}

    def static(problem: Problem) -> tuple[object, ...]:
        op = registry.ops()[problem.op]
        return problem.op, *((name, problem.dims[name]) for name in sorted(op.static))

    assert {static(problem) for problem in own} <= {static(problem) for problem in seen}


def publish(file: Path, winners: dict[int, dict[str, Value]]) -> str:
    (implementation,) = (each for each in registry.implementations("softmax") if each.name == "cpp.rows")
    environment = Environment(CPU.hardware(), CPU.software())
    with Store.open(file) as store:
        for rows, config in winners.items():
            dims: dict[str, Value] = {"rows": rows, "cols": 512, "dtype": "float32"}
            decision = Decision(
                problem=ProblemKey("softmax", registry.ops()["softmax"].version, dims, ("cols", "dtype")),
                environment=environment,
                protocol=Protocol("cold"),
                candidate=CandidateKey("cpp.rows", implementation.fingerprint(), config),
                median_us=10.0,
            )
            store.publish(store.start_run(environment), decision)
    return str(file)


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unseen_shapes, "ROUNDS", 5)


@pytest.fixture
def databases(tmp_path: Path) -> tuple[str, str]:
    return publish(tmp_path / "seen.db", {1: FAST, 64: SLOW}), publish(tmp_path / "own.db", {3: FAST, 40: FAST})


@pytest.mark.thorough
def test_what_dispatch_takes_is_raced_against_the_problems_own_winner(databases: tuple[str, str]) -> None:
    try:
        rows = unseen_shapes.compare(*databases, CPU)
    finally:
        registry.configure(database=None)
    few, many = sorted(rows, key=lambda row: row.octaves, reverse=True)
    assert (few.tuned_at, many.tuned_at) == ("rows=1", "rows=64")
    assert few.ratio == 1.0
    assert few.nearest == few.own
    assert many.nearest != many.own
    assert many.ratio > 0
    assert {"nearest", "own", "default", "torch", "rows=1", "rows=64"} == set(many.times)
    text = unseen_shapes.report(rows)
    assert "2 problems: nearest over own is" in text
    assert unseen_shapes.figures(rows) == ((few.ratio + many.ratio) / 2, max(few.ratio, many.ratio))


def test_a_problem_that_was_seen_after_all_is_refused(tmp_path: Path, databases: tuple[str, str]) -> None:
    own = publish(tmp_path / "other.db", {64: FAST})
    try:
        with pytest.raises(SystemExit, match="answered by step 'exact'"):
            unseen_shapes.compare(databases[0], own, CPU)
    finally:
        registry.configure(database=None)
