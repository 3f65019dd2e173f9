"""``registry export`` and ``registry import`` at the command line: parts of a database, twice, and with slips."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TextIO

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


def test_an_export_replaces_a_file_only_when_told_and_only_when_it_is_whole(
    command: Command, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    file = folder / "there.jsonl"
    file.write_text("the results of a week\n")
    file.chmod(0o640)
    told = command("registry", "export", file, "--db", database)
    assert (told.code, told.out) == (2, "")
    assert f"{file} is there already\n  nothing was written; name another file, or give --force" in told.err

    def ends_early(self: Store, stream: TextIO, **_: object) -> int:
        stream.write("half of a li")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "export", ends_early)
        for name in (file, folder / "new.jsonl"):
            told = command("registry", "export", name, "--force", "--db", database)
            assert (told.code, f"{name}: No space left on device" in told.err) == (2, True)
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [(file.name, "the results of a week\n")]

    assert command("registry", "export", file, "--force", "--db", database).code == 0
    assert file.read_text() == command("registry", "export", "-", "--db", database).out
    assert [path.name for path in folder.iterdir()] == [file.name]
    assert file.stat().st_mode & 0o777 == 0o640


def test_an_export_does_not_replace_what_came_meanwhile(
    command: Command, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "both.jsonl"

    def overtaken(self: Store, stream: TextIO, **_: object) -> int:
        file.write_text("another's\n")
        return stream.write("ours\n")

    monkeypatch.setattr(Store, "export", overtaken)
    told = command("registry", "export", file, "--db", database)
    assert (told.code, "is there already" in told.err, file.read_text()) == (2, True, "another's\n")


def test_an_export_never_replaces_its_database_a_folder_or_a_device(
    command: Command, database: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link.jsonl"
    link.symlink_to(database)
    for file, why in ((link, "is the database itself"), (tmp_path, "is a folder"), ("/dev/null", "no regular file")):
        told = command("registry", "export", file, "--force", "--db", database)
        assert (told.code, why in told.err) == (2, True), told.err
    assert command("registry", "results", "--db", database).code == 0


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


def test_what_never_ends_is_refused(command: Command, tmp_path: Path) -> None:
    told = command("registry", "import", "/dev/zero", "--db", tmp_path / "x.db")
    assert (told.code, told.out) == (2, "")
    assert "/dev/zero, line 1: longer than 16777216 characters" in told.err
    assert "expected a file of `registry export`" in told.err
    assert not (tmp_path / "x.db").exists()
    told = command("registry", "release", "import", "--unsigned", "/dev/zero", "--db", tmp_path / "x.db")
    assert told.code == 2
    assert "/dev/zero: a device" in told.err


def test_a_long_line_is_named_and_not_quoted_whole(
    command: Command, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "all.jsonl"
    command("registry", "export", file, "--db", database)
    with file.open("a") as stream:
        stream.write(json.dumps({"kind": "x" * 100_000}) + "\n")
    told = command("registry", "import", file, "--db", tmp_path / "x.db")
    assert told.code == 2
    assert f"line {len(kinds(file))}: Input tag 'xxx" in told.err
    assert len(told.err) < 1000
    monkeypatch.setattr("tuning_db.exchange.format.MOST_CHARACTERS", 99_999)
    told = command("registry", "import", file, "--db", tmp_path / "x.db")
    assert f"line {len(kinds(file))}: longer than 99999 characters" in told.err
