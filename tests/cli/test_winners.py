"""``registry winners``: what stands on this device, from where, and what it prepares."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from registry import shipped
from registry.device import Device
from registry.discovery.catalog import Catalog
from tuning_db import CandidateKey, Decision, Environment, Interval, ProblemKey, Protocol, Store

from .conftest import Command

CPU = Device.of("cpu")
ENVIRONMENT = Environment(dict(CPU.hardware()), dict(CPU.software()))
WEIGHT = {"m": 1, "n": 4096, "k": 4096, "group_size": 128, "bits": 4, "symmetric": False, "dtype": "bfloat16"}
PREPARES = "torch.tinygemm_cpu"


def square(n: int) -> dict[str, Any]:
    return {"n": n, "dtype": "float32"}


def decided(op: str, dims: Mapping[str, Any], name: str, *, stale: bool = False) -> Decision:
    catalog = Catalog()
    found = next((one for one in catalog.implementations(op) if one.name == name), None)
    fingerprint = "f" * 64 if stale or found is None else found.fingerprint()
    config = {} if found is None else dict(found.default(catalog.op(op).problem_of(dims), CPU))
    return Decision(
        ProblemKey(op, catalog.op(op).version, dims, ("dtype",)), ENVIRONMENT, Protocol("cold", {}),
        CandidateKey(name, fingerprint, config), 5.0, 4.5, verdict="new", default_ratio=Interval(1.4, 1.362, 1.438),
        baselines={"torch.native": 2.5},
    )  # fmt: skip


def stored(path: Path, *decisions: Decision) -> Path:
    with Store.open(path) as store:
        run = store.start_run(ENVIRONMENT)
        for decision in decisions:
            store.publish(run, decision)
    return path


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return stored(
        tmp_path / "own.db",
        decided("square", square(4096), "cpp.blocks"),
        decided("square", square(8192), "cpp.blocks", stale=True),
        decided("softmax", {"rows": 4, "cols": 64, "dtype": "float32"}, "gone.kernel"),
        decided("gemm_int4", WEIGHT, PREPARES),
    )


def by_problem(command: Command, *arguments: str | Path) -> dict[tuple[str, Any], dict[str, Any]]:
    told = command("registry", "winners", "--device", "cpu", "--json", *arguments)
    assert told.code == 0, told.err
    return {(one["op"], one["dims"].get("n")): one for one in json.loads(told.out)}


def test_what_stands_is_told_with_its_figures_and_source(command: Command, database: Path) -> None:
    told = command("registry", "winners", "--device", "cpu", "--op", "square", "--db", database).out
    (line,) = [line for line in told.splitlines() if "n=4096" in line]
    for part in ("cpp.blocks", "5", "0.90", "1.400 (1.362 to 1.438)", "2.50", "database"):
        assert part in line
    assert "at most" in told.splitlines()[-1]
    found = by_problem(command, "--db", database)["square", 4096]
    assert (found["source"], found["implementation"], found["missed"]) == ("database", "cpp.blocks", "")
    assert found["decision"]["median_us"] == 5.0


def test_in_the_place_of_a_stale_winner_stands_what_runs_and_why(command: Command, database: Path) -> None:
    found = by_problem(command, "--db", database)
    stale, gone = found["square", 8192], found["softmax", None]
    assert (stale["source"], stale["implementation"]) == ("nearest", "cpp.blocks")
    assert "the source of cpp.blocks has changed" in stale["missed"]
    assert stale["decision"] is None, "it was not timed at this size"
    assert gone["source"] == "default"
    assert "gone.kernel is not installed here" in gone["missed"]
    told = command("registry", "winners", "--device", "cpu", "--db", database).out
    assert "the source of cpp.blocks has changed" in told
    assert "4 problems on cpu" in told


def test_what_a_winner_prepares_of_a_weight_is_shown(command: Command, database: Path) -> None:
    found = by_problem(command, "--db", database)["gemm_int4", 4096]
    assert (found["implementation"], found["source"]) == (PREPARES, "database")
    assert found["prepared_bytes"] >= 4096 * 4096 // 2, "four bits for each weight"
    told = command("registry", "winners", "--device", "cpu", "--op", "gemm_int4", "--db", database).out
    assert f"{found['prepared_bytes'] / 2**20:.1f} MiB" in told


def test_shipped_winners_stand_behind_the_users_own(
    command: Command, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, file = tmp_path / "shipped", shipped.file_name(CPU.name)
    folder.mkdir()
    both = decided("square", square(4096), "torch.native"), decided("square", square(5), "torch.native")
    other = stored(tmp_path / "other.db", *both)
    assert command("registry", "export", "--winners-only", folder / file, "--db", other).code == 0
    monkeypatch.setenv(shipped.VARIABLE, str(folder))
    found = by_problem(command, "--db", database, "--op", "square")
    assert {key[1]: (one["source"], one["implementation"]) for key, one in found.items()} == {
        4096: ("database", "cpp.blocks"), 8192: ("nearest", "cpp.blocks"), 5: ("shipped", "torch.native")
    }  # fmt: skip
    alone = by_problem(command, "--db", tmp_path / "missing.db")
    assert {one["source"] for one in alone.values()} == {"shipped"}


def test_without_a_winner_it_says_so(command: Command, tmp_path: Path) -> None:
    told = command("registry", "winners", "--device", "cpu", "--db", tmp_path / "none.db")
    assert told.code == 0
    assert "no winner for cpu" in told.out
    assert not (tmp_path / "none.db").exists()


def test_an_unknown_op_is_refused_and_one_that_is_gone_is_told(command: Command, tmp_path: Path) -> None:
    assert "unknown op 'sofmax'" in command("registry", "winners", "--op", "sofmax").err
    key = ProblemKey("acme::gone", 1, {"n": 8}, ())
    gone = Decision(key, ENVIRONMENT, Protocol("cold", {}), CandidateKey("acme.it", "f" * 64, {}), 5.0, verdict="new")
    told = command("registry", "winners", "--device", "cpu", "--db", stored(tmp_path / "gone.db", gone))
    assert "unknown here: acme::gone n=8: " in told.out


@pytest.mark.skipif(
    "x86_64" not in str(CPU.hardware()["architecture"]), reason="rules for x86-64 come with the package"
)
def test_a_default_that_a_rule_chose_is_told_as_learnt(
    command: Command, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(shipped.VARIABLE, "1")
    assert by_problem(command, "--db", database)["softmax", None]["source"] == "learnt default"
