"""Large files: what an import or an export holds does not grow with them, and nothing is accepted for being quick."""

from __future__ import annotations

import io
import json
import sqlite3
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tuning_db import CandidateKey, Decision, Environment, Final, ProblemKey, Protocol, Store, Trial, identity_rows
from tuning_db.exchange import format as exchange_format
from tuning_db.exchange import parts
from tuning_db.exchange.format import ExchangeLine, TrialLine, line, lines
from tuning_db.exchange.quick_lines import KnownIdentities
from tuning_db.records import PlainTrial

from .. import overhead

ENVIRONMENT = Environment({"name": "H200", "parts": [1, True]}, {"torch": "2.11"})
PROTOCOL = Protocol("cold", {"rounds": 10})


def a_trial(number: int, **fields: Any) -> Trial:
    problem = ProblemKey(
        "softmax", 1, {"rows": 1 + number % 7, "cols": 64.5, "flag": number % 2 == 0}, ("cols", "flag")
    )
    candidate = CandidateKey("acme.row", "f" * 64, {"warps": number % 5, "name": "µ"})
    told = {
        "status": "ok",
        "median_us": 1.0 + number,
        "samples": (1.5, 2.0, 1e-7, 1e22),
        "details": {"é": [None, 0.1], "nan": "nan"},
    }
    return Trial(problem, candidate, ENVIRONMENT, PROTOCOL, **{**told, **fields})


def fill(store: Store, count: int) -> None:
    run = store.start_run(ENVIRONMENT, {"command": "tune"})
    store.add_trials(run, [a_trial(number) for number in range(count)])
    odd = [
        a_trial(0, median_us=None, samples=(), status="wrong_result", message='it\'s "1e5×"\nand \\u0000 more\t'),
        a_trial(1, censored=True, stop_reason="given up", artifact_hash="abc", details={}),
        a_trial(2, median_us=3, samples=(1, 2)),
    ]
    store.add_trials(run, odd)
    decision = Decision(odd[0].problem, ENVIRONMENT, PROTOCOL, odd[0].candidate, 5.0)
    finals = [Final(odd[place].candidate, "candidate", 0, place, 0, 1.5 + place) for place in range(3)]
    store.publish(run, decision, [*finals, Final(None, "floor", 0, 0, 3, 1.0)])
    store.publish(run, Decision(odd[1].problem, ENVIRONMENT, PROTOCOL, odd[1].candidate, 5.0), finals)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> str:
    with Store.open(tmp_path_factory.mktemp("exported") / "from.db") as store:
        fill(store, 40)
        stream = io.StringIO()
        store.export(stream)
    return stream.getvalue()


def test_lines_made_of_columns_are_those_of_the_records(tmp_path: Path) -> None:
    with Store.open(tmp_path / "from.db") as store:
        fill(store, 40)
        stream = io.StringIO()
        store.export(stream)
        (run,) = store.runs()
        expected = [line(TrialLine(run=run.uid, trial=trial)) for trial in reversed(store.trials())]
    found = [text for text in stream.getvalue().splitlines(keepends=True) if '"kind":"trial"' in text]
    assert found == expected


@pytest.mark.parametrize("stored", ['{"b":1, "a":[0.5]}', '{"b":\n1,"a":[0.5]}', '{"b":1,"a":[0.5],"é":""}'])
@pytest.mark.few(1)
def test_stored_details_of_any_form_make_one_line(tmp_path: Path, stored: str) -> None:
    path, stream = tmp_path / "from.db", io.StringIO()
    with Store.open(path) as store:
        store.add_trials(store.start_run(ENVIRONMENT), [a_trial(0)])
        with sqlite3.connect(path) as database:
            database.execute("UPDATE trial SET details = ?", [stored])
        database.close()
        store.export(stream)
    *_, told = stream.getvalue().splitlines()
    assert told.isascii()
    assert json.loads(told)["trial"]["details"] == json.loads(stored)


def records(text: str) -> list[tuple[int, ExchangeLine]]:
    """The lines with each plain trial as the record that it stands for."""
    return [
        (number, TrialLine(run=content.run, trial=content.trial()) if isinstance(content, PlainTrial) else content)
        for number, content in lines(io.StringIO(text))
    ]


def thoroughly(monkeypatch: pytest.MonkeyPatch, text: str) -> list[tuple[int, ExchangeLine]]:
    with monkeypatch.context() as patch:
        patch.setattr(KnownIdentities, "trial", lambda self, text: None)
        patch.setattr(KnownIdentities, "without_finals", lambda self, text: None)
        return list(lines(io.StringIO(text)))


def test_what_is_read_quickly_is_what_is_read_thoroughly(exported: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert records(exported) == thoroughly(monkeypatch, exported)


def test_names_of_fields_inside_values_are_not_taken_for_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = {"samples": [1.5], "uid": "a", "problem": {"dims": 1}, "finals": [{"block": 0}], "details": {"created": 1}}
    candidate = CandidateKey("acme.row", "f", {"censored": False, "created": "x", **dict.fromkeys(odd, '{"dims":{}}')})
    message = '","problem":{"dims":{}},"uid":"b"}},"finals":[{"block":0'
    fields = {"candidate": candidate, "protocol": Protocol("cold", odd), "message": message, "details": odd}
    trials = [replace(a_trial(number), **fields) for number in range(3)]  # type: ignore[arg-type]
    decision = Decision(trials[0].problem, ENVIRONMENT, Protocol("cold", odd), candidate, 5.0, verdict=message)
    with Store.open(tmp_path / "from.db") as store:
        run = store.start_run(ENVIRONMENT)
        store.add_trials(run, [a_trial(0), *trials])
        store.publish(run, decision, [Final(candidate, "candidate", 0, 0, 0, 1.5), Final(None, "floor", 0, 1, 1, 2.5)])
        stream = io.StringIO()
        store.export(stream)
    text = stream.getvalue()
    assert records(text) == thoroughly(monkeypatch, text)


def test_only_lines_that_name_something_new_are_read_thoroughly(exported: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    ours = exchange_format._thoroughly

    def counted(number: int, text: str, known: KnownIdentities) -> ExchangeLine:
        read.append(number)
        return ours(number, text, known)

    monkeypatch.setattr(exchange_format, "_thoroughly", counted)
    trials = [text for text in exported.splitlines(keepends=True) if '"kind":"trial"' in text]
    first = list(lines(io.StringIO(exported)))
    once, read[:] = len(read), []
    again = list(lines(io.StringIO(exported + "".join(trials) * 3)))
    assert len(again) == len(first) + 3 * len(trials)
    assert len(read) <= once + 6, "the three trials that are unusual, three times, less those that were new"


SPOILS: list[Callable[[dict[str, Any]], Any]] = [
    lambda r: r["trial"].update(median_us=0.0),
    lambda r: r["trial"].update(median_us="3"),
    lambda r: r["trial"].update(median_us=True),
    lambda r: r["trial"].update(samples=[1.0, "2"]),
    lambda r: r["trial"].update(samples=[1.0, float("nan")]),
    lambda r: r["trial"].update(samples={"a": 1}),
    lambda r: r["trial"].update(created="2026-02-30T00:00:00+00:00"),
    lambda r: r["trial"].update(created="9999-12-31T00:00:00+00:00"),
    lambda r: r["trial"].update(created="2026-02-03T00:00:00"),
    lambda r: r["trial"].update(status=""),
    lambda r: r["trial"].update(status="\0"),
    lambda r: r["trial"].update(message=3),
    lambda r: r["trial"].update(uid="x" * 65),
    lambda r: r["trial"].update(censored=1),
    lambda r: r["trial"].update(details=[1]),
    lambda r: r["trial"].update(details={"x": "BIG"}),
    lambda r: r["trial"].update(details={"x": "\0"}),
    lambda r: r["trial"].update(samples=[1.0, "BIG"]),
    lambda r: r["trial"].update(median_us="BIG"),
    lambda r: r["trial"].update(artifact_hash="x" * 256),
    lambda r: r["trial"].update(more=1),
    lambda r: r["trial"].update(problem=None),
    lambda r: r["trial"].update(protocol=[]),
    lambda r: r.update(more=1),
    lambda r: r.pop("run"),
    lambda r: r["trial"].pop("status"),
]


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_bad_line_of_known_identities_is_refused_as_any(
    exported: str, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[dict[str, Any]], Any]
) -> None:
    record = json.loads(next(text for text in exported.splitlines() if '"kind":"trial"' in text))
    spoil(record)
    text = exported + json.dumps(record, separators=(",", ":")).replace('"BIG"', "1e999") + "\n"
    outcomes = []
    for read in (lambda: records(text), lambda: thoroughly(monkeypatch, text)):
        try:
            outcomes.append(repr(read()))
        except Exception as fault:  # both raise, and tell alike
            outcomes.append(f"{type(fault).__name__}: {fault}")
    assert outcomes[0] == outcomes[1]


def test_runs_may_stand_behind_what_refers_to_them(
    exported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "TOGETHER", 8)
    monkeypatch.setattr(identity_rows, "_MOST_HELD", 3)
    header, *others = exported.splitlines(keepends=True)
    with Store.open(tmp_path / "into.db") as store:
        assert store.load(io.StringIO("".join([header, *reversed(others)]))) == len(others)
        assert store.load(io.StringIO(exported)) == 0
        stream = io.StringIO()
        store.export(stream)
    assert sorted(stream.getvalue().splitlines()) == sorted(exported.splitlines())


class Sink(io.StringIO):
    """A stream that keeps nothing."""

    def write(self, text: str) -> int:
        return len(text)


def peak(action: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.thorough
def test_neither_an_import_nor_an_export_holds_what_it_moves(
    exported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "TOGETHER", 64)
    monkeypatch.setattr(overhead, "SHARES_STATEMENTS", False)
    head = [text for text in exported.splitlines(keepends=True) if '"kind":"trial"' not in text]
    plain = next(text for text in exported.splitlines(keepends=True) if '"kind":"trial"' in text)
    uid = json.loads(plain)["trial"]["uid"]

    def many(count: int) -> Iterator[str]:
        yield from head[:2]
        yield from (plain.replace(uid, f"{number:032x}") for number in range(count))

    peaks = []
    with Store.open(tmp_path / "warm.db") as store:
        store.load(iter(many(100)))  # type: ignore[arg-type]
    for count in (1500, 6000):
        with Store.open(tmp_path / f"{count}.db") as store:
            peaks.append(
                (
                    peak(lambda store=store, count=count: store.load(iter(many(count)))),  # type: ignore[misc]
                    peak(lambda store=store: store.export(Sink())),  # type: ignore[misc]
                )
            )
            assert store.statistics().trials == count
    (few_in, few_out), (many_in, many_out) = peaks
    assert many_in < 1.5 * few_in
    assert many_out < 1.5 * few_out


def test_an_old_sqlite_that_takes_few_values_in_a_statement_takes_every_row(exported: str, tmp_path: Path) -> None:
    with Store.open(tmp_path / "into.db") as store:
        with store._opened.writer.connect() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            driver.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 60)
        assert store.load(io.StringIO(exported)) == len(exported.splitlines()) - 1
        stream = io.StringIO()
        store.export(stream)
    assert stream.getvalue() == exported
