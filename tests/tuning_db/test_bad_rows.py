"""Rows that nobody's tuner wrote, each skipped by every query that reads a database, with one warning."""

from __future__ import annotations

import io
import logging
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tuning_db import Decision, Environment, Final, Protocol, Store
from tuning_db.database import bad_rows

from ..tiers import one_of_each

HOSTILE = [
    "NULL", "''", "'abc'", "'{half'", "'[1]'", "'{}'", "'[]'", "'null'", "'1'", "1e999", "-1", "1.5", "77777",
    "x'ff00fe'", "'[NaN, -1, \"x\", null]'", "'{\"x\": {\"y\": [1]}, \"\": null}'", "'0001-01-01 00:00:00.000000'",
    "hex(zeroblob(5000))", "char(27) || '[31m' || char(0)",
]  # fmt: skip
COLUMNS = [
    *(f"trial.{name}" for name in (
        "problem_id", "candidate_id", "hardware_id", "software_id", "protocol_id", "created", "run_id", "status",
        "message", "median_us", "samples", "censored", "stop_reason", "artifact_hash", "details", "uid",
    )),
    *(f"decision.{name}" for name in (
        "problem_id", "candidate_id", "created", "run_id", "median_us", "floor_us", "ratio", "verdict", "baselines",
        "default_lo", "ties", "transfers", "trial_uid", "previous_uid",
    )),
    "problem.dims", "problem.static_key", "problem.op_version", "problem.op", "candidate.config",
    "candidate.implementation_id", "implementation.name", "implementation.fingerprint", "protocol.details",
    "protocol.regime", "software.identity", "hardware.identity", "run.started", "run.ended", "run.details",
    "run.summary", "final.role", "final.block", "final.us", "final.candidate_id",
]  # fmt: skip


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, make: Any) -> Path:
    """A database of two trials and two winners that share nothing: the first row of each table is that of one."""
    path = tmp_path_factory.mktemp("two") / "tuning.db"
    with Store.open(path) as store:
        for cols in (1, 2):
            place = {
                "environment": Environment({"gpu": f"GPU {cols}"}, {"torch": str(cols)}),
                "protocol": Protocol("cold", {"round": cols}),
            }
            problem = make.problem(cols=cols)
            run = store.start_run(place["environment"])
            trial = type(make.trial())(
                problem, make.candidate(fingerprint=str(cols)), status="ok", median_us=1.0, **place
            )
            store.add_trials(run, [trial])
            decision = Decision(problem, candidate=trial.candidate, median_us=1.0, trial_uid=trial.uid, **place)
            store.publish(run, decision, [Final(trial.candidate, "candidate", 0, 0, 0, 1.0)])
            store.end_run(run)
    return path


def damaged(two: Path, folder: Path, column: str, value: str) -> Path:
    """The database with a hostile value in the first row of a table."""
    path = Path(shutil.copy(two, folder / "tuning.db"))
    table, _, name = column.partition(".")
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA foreign_keys=OFF")
        try:
            raw.execute(f"UPDATE {table} SET {name} = {value} WHERE rowid = 1")
        except sqlite3.IntegrityError:
            pytest.skip("no row can hold it")
        raw.commit()
    return path


CASES = [(column, value) for column in COLUMNS for value in HOSTILE]


@pytest.mark.parametrize(
    ("column", "value"), one_of_each(CASES, lambda column, value: column), ids=lambda text: text[:20]
)
@pytest.mark.few(12)
def test_every_query_skips_the_row_and_reads_the_others(
    two: Path, tmp_path: Path, column: str, value: str, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    path = damaged(two, tmp_path, column, value)
    monkeypatch.setattr(bad_rows, "_told", set())
    caplog.set_level(logging.WARNING)
    with Store.open(path) as store:
        assert 1 <= len(store.trials()) <= 2
        with store.each_trial() as trials:
            assert 1 <= len(list(trials)) <= 2
        with store.each_search() as searches:
            assert 1 <= sum(len(search.attempts) for search in searches) <= 2
        assert 1 <= len(store.winners()) <= 2
        assert 1 <= len(store.runs()) <= 2
        assert 1 <= len(store.hardware()) <= 2
        kept = store.winners()[0]
        assert len(store.history(kept.problem, kept.environment.hardware)) >= 1
        for decision in store.winners():
            store.finals(decision.uid)
        for winners_only in (False, True):
            assert store.export(io.StringIO(), winners_only=winners_only) >= 2
        store.winners_content()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == len(set(told)) <= 6
    assert all("\x1b" not in text and "\0" not in text and len(text) < 600 for text in told)


@pytest.mark.parametrize(("column", "value"), [("created", "'never'"), ("name", "x'ff00fe'"), ("winners", "'two'")])
def test_a_release_that_cannot_be_read_hides_no_other(two: Path, tmp_path: Path, column: str, value: str) -> None:
    path = Path(shutil.copy(two, tmp_path / "tuning.db"))
    with Store.open(path) as store:
        store.create_release("one"), store.create_release("two")
    with closing(sqlite3.connect(path)) as raw:
        raw.execute(f"UPDATE release_set SET {column} = {value} WHERE name = 'one'")
        raw.commit()
    with Store.open(path) as store:
        assert [release.name for release in store.releases() if release.name != "one"] == ["two"]


def test_a_skipped_row_is_told_once(two: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = Path(shutil.copy(two, tmp_path / "tuning.db"))
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("UPDATE trial SET samples = '{half' WHERE id = 1")
        raw.commit()
    with Store.open(path) as store:
        assert [[len(trial.problem.dims) for trial in store.trials()] for _ in range(3)] == [[3]] * 3
    (record,) = caplog.records
    assert record.getMessage().startswith(f"sqlite:///{path}: a trial that cannot be read is skipped")
