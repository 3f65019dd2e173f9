"""Releases: sets of winners that never change, equal in every database that has these winners."""

from __future__ import annotations

import io
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tuning_db import CorruptedDatabaseError, ExchangeError, Final, InvalidRecordError, Store
from tuning_db.exchange import DecisionLine, RunLine, WinnerLine, lines
from tuning_db.releases import find_content, find_id, find_names, id_of

from ..tiers import one_of_each

SECONDS = 30.0


def tuned(store: Store, make: Any) -> None:
    """Two problems with winners, one of them the second of its problem; and a last run that learnt and won nothing."""
    run = store.start_run(make.environment)
    first = make.decision()
    assert store.publish(run, first, [Final(make.candidate(), "candidate", 0, 0, 0, 10.5)])
    finals = [Final(make.candidate(8), "candidate", block, 0, 0, 9.5 + block) for block in range(3)]
    assert store.publish(run, make.decision(num_warps=8, previous=first.uid), finals)
    assert store.publish(run, make.decision(make.problem(rows=1)))
    store.end_run(store.start_run(make.environment), {"learnt_defaults": {"softmax": {}}})


def test_a_release_has_the_winners_with_all_their_evidence(store: Store, make: Any) -> None:
    tuned(store, make)
    made = store.create_release("2026-11")
    assert (made.name, made.winners) == ("2026-11", 2)
    assert store.releases() == [made]
    assert find_id(store._opened.location.shown, "2026-11", SECONDS) == made.id
    content = find_content(store._opened.location.shown, made.id, SECONDS)
    assert content is not None
    assert id_of(content) == made.id
    found = [line for _, line in lines(io.StringIO(content.decode()))]
    decisions = [line for line in found if isinstance(line, DecisionLine)]
    assert [(line.decision.problem.dims["rows"], len(line.finals)) for line in decisions] == [(1, 0), (4096, 3)]
    assert {line.decision for line in found if isinstance(line, WinnerLine)} == {
        line.decision.uid for line in decisions
    }
    runs = [line.run.summary for line in found if isinstance(line, RunLine)]
    assert {"learnt_defaults": {"softmax": {}}} in runs


@pytest.mark.few(1)
def test_it_stays_while_winners_change(store: Store, make: Any) -> None:
    tuned(store, make)
    made = store.create_release("old")
    assert store.create_release("old") == made, "of the same winners it is the same"
    current = store.winner(make.problem(), make.environment.hardware, make.environment.software)
    assert current is not None
    run = store.start_run(make.environment)
    assert store.publish(run, make.decision(num_warps=16, median_us=8.0, previous=current.uid))
    with pytest.raises(InvalidRecordError, match="the release old is there, with other winners"):
        store.create_release("old")
    assert store.create_release("new").id != made.id
    assert [one.name for one in store.releases()] == ["new", "old"]


@pytest.mark.few(1)
def test_equal_winners_have_one_id_in_every_database(url: str, tmp_path: Path, make: Any) -> None:
    with Store.open(url) as store, Store.open(tmp_path / "other.db") as other:
        # other row numbers than in the first database
        other.publish(other.start_run(make.environment), make.decision(make.problem(rows=7), num_warps=2))
        tuned(store, make)
        exported = io.StringIO()
        store.export(exported)
        other.load(io.StringIO(exported.getvalue()))
        hardware = [make.environment.hardware]
        assert other.create_release("all", hardware=hardware).winners == 3
    with Store.open(tmp_path / "third.db") as third:
        third.load(io.StringIO(exported.getvalue()))
        with Store.open(url) as store:
            assert third.winners_content() == store.winners_content()


@pytest.mark.thorough
def test_two_that_make_a_release_at_once_make_one(url: str, make: Any) -> None:
    with Store.open(url) as store:
        tuned(store, make)
        content = store.winners_content()
        for turn in range(8):
            together = threading.Barrier(4)

            def add(name: str, together: threading.Barrier = together) -> str:
                together.wait(30)
                return store.add_release(name, content).id

            with ThreadPoolExecutor(4) as pool:
                assert set(pool.map(add, [f"release{turn}"] * 4)) == {id_of(content)}
        assert len(store.releases()) == 8
        assert find_names(store._opened.location.shown, id_of(content), SECONDS) == [f"release{n}" for n in range(8)]


@pytest.mark.parametrize("name", ["", "a b", "../a", "-a", "a" * 101, "0" * 64, "a.jsonl"])
@pytest.mark.parametrize("url", one_of_each(["sqlite", "postgresql"]), indirect=True)
@pytest.mark.few(4)
def test_a_name_is_plain_text(store: Store, make: Any, name: str) -> None:
    tuned(store, make)
    with pytest.raises(InvalidRecordError, match="a release cannot be called"):
        store.create_release(name)
    assert store.releases() == []


def test_nothing_without_winners_is_released(store: Store) -> None:
    with pytest.raises(InvalidRecordError, match="has no winner"):
        store.create_release("empty")
    with pytest.raises(ExchangeError, match="no winner is in it"):
        store.add_release("empty", store.winners_content())
    with pytest.raises(ExchangeError, match="line 1"):
        store.add_release("bad", b"{}\n")


def test_damaged_content_is_found_out(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "tuning.db"
    with Store.open(path) as store:
        tuned(store, make)
        made = store.create_release("one")
    connection = sqlite3.connect(path)
    connection.execute("UPDATE release_set SET content = ?", (b"x",))
    connection.commit()
    connection.close()
    with pytest.raises(CorruptedDatabaseError, match=f"release {made.id[:12]} is damaged"):
        find_content(path, made.id, SECONDS)
    assert find_content(path, "0" * 64, SECONDS) is None
    assert find_id(path, "two", SECONDS) is None


def test_a_database_of_an_older_schema_has_none(tmp_path: Path) -> None:
    path, dump = tmp_path / "old.db", Path(__file__).parent / "fixtures" / "v3.sql"
    connection = sqlite3.connect(path)
    connection.executescript(dump.read_text(encoding="utf-8"))
    connection.close()
    assert find_id(path, "one", SECONDS) is None
    with Store.open(path, create=False, migrate=False) as store:
        assert store.releases() == []


def test_a_release_of_the_first_version_that_has_them_is_read(tmp_path: Path) -> None:
    path, dump = tmp_path / "old.db", Path(__file__).parent / "fixtures" / "v4.sql"
    connection = sqlite3.connect(path)
    connection.executescript(dump.read_text(encoding="utf-8"))
    connection.close()
    with Store.open(path) as store:
        (found,) = store.releases()
        assert (found.name, found.winners) == ("2026-01", 1)
        assert find_content(path, found.id, SECONDS) == store.winners_content()
