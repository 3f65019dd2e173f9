"""``tune --dry-run`` tells which stored winners stay, and which are raced again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from registry.device import Device
from registry.discovery.catalog import Catalog
from tuning_db import CandidateKey, Decision, Environment, ProblemKey, Protocol, Store

from ..conftest import Command

CPU = Device.of("cpu")
NATIVE = ("--device", "cpu", "--dry-run", "--implementations", "torch.native")
BOTH = (*NATIVE[:-1], "torch.native,cpp.blocks")


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """torch.native has won square n=4096, alone."""
    path = tmp_path / "winners.db"
    op, native = Catalog().op("square"), Catalog().implementation("square", "torch.native")
    environment = Environment(dict(CPU.hardware()), dict(CPU.software()))
    problem = ProblemKey(op.name, op.version, {"n": 4096, "dtype": "float32"}, tuple(sorted(op.static)))
    winner = CandidateKey(native.name, native.fingerprint(), {})
    with Store.open(path) as store:
        run = store.start_run(environment, {"implementations": {"square": {native.name: native.fingerprint()}}})
        store.publish(run, Decision(problem, environment, Protocol("cold", {}), winner, 5.0))
    return path


def test_a_winner_that_has_met_all_stays(command: Command, shapes: Path, database: Path) -> None:
    told = command("tune", "--shapes", shapes, *NATIVE, "--db", database)
    assert "tuned before: the stored winner torch.native stays (--retune races it again)" in told.out
    assert "0 problems to tune" in told.out
    assert "0 skipped, 1 tuned before" in told.out
    (data,) = json.loads(command("tune", "--shapes", shapes, *NATIVE, "--db", database, "--json").out)
    assert data["winner"] == {"implementation": "torch.native", "config": {}, "unmet": []}


def test_a_winner_is_raced_by_what_it_has_not_met(command: Command, shapes: Path, database: Path) -> None:
    told = command("tune", "--shapes", shapes, *BOTH, "--db", database)
    assert "raced again: the stored winner torch.native has not met cpp.blocks" in told.out
    assert "1 problem to tune" in told.out
    (data,) = json.loads(command("tune", "--shapes", shapes, *BOTH, "--db", database, "--json").out)
    assert data["winner"]["unmet"] == ["cpp.blocks"]


@pytest.mark.parametrize("more", [["--retune"], ["--regime", "hot"]])
@pytest.mark.few(1)
def test_all_problems_are_to_be_tuned_where_no_winner_counts(
    command: Command, shapes: Path, database: Path, more: list[str]
) -> None:
    told = command("tune", "--shapes", shapes, *NATIVE, "--db", database, *more)
    assert "1 problem to tune" in told.out
    assert "winner" not in told.out
