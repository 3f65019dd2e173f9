"""``registry compare``: databases, exports, dates; exit codes for CI."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from registry.cli.authors.compare import _shown
from tuning_db import Store

from ...report.records import H200, ROW, SPLIT, decision, softmax
from ..conftest import Command


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A winner that got slower on the first of March, and one that did not change."""
    first = decision(softmax(4096), ROW, 10.0, created=datetime(2026, 1, 1, 12, tzinfo=UTC))
    later = decision(softmax(4096), SPLIT, 15.0, created=datetime(2026, 3, 1, tzinfo=UTC), previous=first.uid)
    with Store.open(tmp_path / "tuning.db") as store:
        run = store.start_run(H200)
        for one in (first, later, decision(softmax(1), ROW, 1.0, created=first.created)):
            assert store.publish(run, one)
    return tmp_path / "tuning.db"


def test_a_winner_that_got_slower_fails_a_ci_job(command: Command, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    told = command("registry", "compare", f"{path}@2026-01-01", path)
    assert told.code == 1, told.err
    assert "slower" in told.out
    assert "triton.row num_warps=4 →" in " ".join(told.out.split())
    assert max(map(len, told.out.splitlines())) <= 80
    assert told.out.splitlines()[-1] == "2 winners compared: 1 slower, 1 same, 1 changed candidate"
    assert command("registry", "compare", path, f"{path}@2026-02-01").code == 0
    assert command("registry", "compare", f"{path}@2026-01-01", f"{path}@2026-02-01T12:00Z").code == 0


def test_exports_are_compared_and_told_to_machines(command: Command, path: Path, tmp_path: Path) -> None:
    assert command("registry", "export", tmp_path / "all.jsonl", "--db", path).code == 0
    told = command("registry", "compare", f"{tmp_path / 'all.jsonl'}@2026-01-01", path, "--json", "--op", "softmax")
    found = json.loads(told.out)
    assert (told.code, found["ok"]) == (1, False)
    (slower,) = [change for change in found["changes"] if change["kind"] == "slower"]
    assert (slower["ratio"], slower["before"]["implementation"]) == (1.5, "triton.row")
    assert slower["before"]["time_us"]["high"] < slower["after"]["time_us"]["low"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no.db", "tuning.db"], "no.db"),
        (["tuning.db@2026-13-01", "tuning.db"], "'2026-13-01' is no date"),
        (["bad.jsonl", "tuning.db"], "bad.jsonl, line 1"),
        (
            ["tuning.db", "tuning.db", "--op", "softmaks"],
            "neither A nor B has a winner of it\n  did you mean softmax?",
        ),
    ],
)
def test_a_source_that_cannot_be_read_is_a_mistake(
    command: Command, path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(path.parent)
    Path("bad.jsonl").write_text('{"what": 1}\n')
    told = command("registry", "compare", *arguments)
    assert (told.code, told.out) == (2, "")
    assert message in told.err


def test_a_page_tells_the_changes_with_their_intervals(command: Command, path: Path, tmp_path: Path) -> None:
    out, before = tmp_path / "changes.html", f"{path}@2026-01-01"
    assert command("registry", "compare", before, path, "--out", out).code == 1
    text = out.read_text()
    assert "<h1>1 slower</h1>" in text
    assert re.findall(r'<tr data-kind="(\w+)"', text) == ["slower", "same"]
    assert re.search(r"1\.50 \(1\.4\d to 1\.5\d\)", text), "the interval of the time after, over the time before"
    assert not re.search(r"url\(|@import|https?://|fetch\(|XMLHttp", text)
    # as a report it is replaced, and nothing else is
    assert command("registry", "compare", path, path, "--out", out).code == 0
    assert "Nothing got slower or faster" in out.read_text()
    (tmp_path / "notes.html").write_text("mine")
    assert command("registry", "compare", before, path, "--out", tmp_path / "notes.html").code == 2
    assert (tmp_path / "notes.html").read_text() == "mine"


def test_a_page_names_no_password() -> None:
    assert _shown("postgresql://me:secret@db/tuning@2026-01-01") == "postgresql://me:***@db/tuning@2026-01-01"
    assert _shown("a.db@2026-01-01") == "a.db@2026-01-01"
