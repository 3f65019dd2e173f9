"""``registry export`` and ``registry import`` at the command line: parts of a database, twice, and with slips."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuning_db import CandidateKey, Decision, Environment, ProblemKey, Protocol, Store, Trial

from .conftest import Command

PROTOCOL = Protocol("cold", {"rounds": 10})
CANDIDATE = CandidateKey("triton.block", "f" * 64, {"BLOCK": 1024})


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A trial and a winner on each of two GPUs, and what the second winner has replaced."""
    path = tmp_path / "some.db"
    with Store.open(path) as store:
        for name in ("NVIDIA H200", "NVIDIA L4"):
            environment = Environment({"type": "cuda", "name": name}, {"torch": "2.11.0"})
            run = store.start_run(environment)
            problem = ProblemKey("square", 1, {"n": 4096, "dtype": "float32"}, ("dtype",))
            store.add_trials(run, [Trial(problem, CANDIDATE, environment, PROTOCOL, "ok", median_us=5.0)])
            first = Decision(problem, environment, PROTOCOL, CANDIDATE, 5.0)
            store.publish(run, first)
            store.publish(run, Decision(problem, environment, PROTOCOL, CANDIDATE, 4.0, previous=first.uid))
    return path


def kinds(file: Path) -> list[str]:
    return [json.loads(line)["kind"] for line in file.read_text().splitlines()]


def test_winners_of_one_hardware_travel_alone(command: Command, database: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "winners.jsonl", tmp_path / "other.db"
    options = ["--winners-only", "--hardware", "nvidia h200"]
    assert "3 records written" in command("registry", "export", *options, file, "--db", database).out
    assert kinds(file) == ["header", "run", "decision", "winner"]
    assert command("registry", "export", *options, "-", "--db", database).out == file.read_text()
    assert "3 new records" in command("registry", "import", file, "--db", other).out
    assert "0 new records" in command("registry", "import", file, "--db", other).out
    (winner,) = json.loads(command("registry", "results", "--json", "--db", other).out)
    assert (winner["hardware"]["name"], winner["median_us"]) == ("NVIDIA H200", 4.0)


def test_hardware_that_is_not_there_is_refused_with_what_is(command: Command, database: Path, tmp_path: Path) -> None:
    told = command("registry", "export", tmp_path / "x.jsonl", "--hardware", "NVIDIA H20", "--db", database)
    assert told.code == 2
    assert "unknown hardware 'NVIDIA H20'\n  did you mean NVIDIA H200 or NVIDIA L4?" in told.err
    assert not (tmp_path / "x.jsonl").exists()


def test_a_bad_line_is_named_and_nothing_is_imported(command: Command, database: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "winners.jsonl", tmp_path / "other.db"
    command("registry", "export", "--winners-only", file, "--db", database)
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:-1], lines[-1].replace('"kind":"winner"', '"kind":"victor"')]) + "\n")
    told = command("registry", "import", file, "--db", other)
    assert told.code == 2
    assert f"winners.jsonl, line {len(lines)}: " in told.err
    assert "nothing was imported" in told.err
    assert not other.exists()
