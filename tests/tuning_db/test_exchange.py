"""Results that travel as JSON lines: nothing is lost, nothing comes twice, and a bad line stores nothing."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tuning_db import Environment, ExchangeError, Final, Store

from ..tiers import one_of_each


@pytest.fixture
def filled(tmp_path: Path, make: Any) -> Iterator[Store]:
    """A store with two ops, two GPUs, a lost decision and a winner that had a predecessor."""
    with Store.open(tmp_path / "filled.db") as store:
        run = store.start_run(make.environment, {"command": "tune"})
        trial = make.trial(make.problem(causal=True, scale=1.0), details={"max_error": float("inf")})
        store.add_trials(run, [trial, make.trial(make.problem(op="rms_norm"))])
        first = make.decision(make.problem(causal=True, scale=1.0), trial_uid=trial.uid)
        store.publish(run, first, [Final(first.candidate, "candidate", 0, 0, 0, 1.5), Final(None, "floor", 0, 0, 1, 1)])
        store.publish(run, make.decision(first.problem, num_warps=16))
        store.publish(run, make.decision(first.problem, num_warps=8, previous=first.uid, baselines={"torch.native": 2}))
        store.end_run(run, {"aa_noise": 0.01})
        other = Environment({"gpu": "H100"}, {})
        run = store.start_run(other)
        store.publish(run, make.decision(environment=other))
        yield store


def test_everything_arrives_on_either_database(filled: Store, store: Store) -> None:
    sent = _export(filled)
    assert store.load(io.StringIO(sent)) == sent.count("\n") - 1
    assert sorted(_export(store).splitlines()) == sorted(sent.splitlines())


@pytest.mark.few(1)
def test_importing_again_adds_nothing(filled: Store, store: Store) -> None:
    sent = _export(filled)
    store.load(io.StringIO(sent))
    before = _export(store)
    assert store.load(io.StringIO(sent)) == 0
    assert filled.load(io.StringIO(sent)) == 0
    assert _export(store) == before


def test_an_export_can_be_of_one_op_or_one_gpu(filled: Store, make: Any, tmp_path: Path) -> None:
    kinds = [json.loads(text)["kind"] for text in _export(filled, op="rms_norm").splitlines()]
    assert kinds == ["header", "run", "trial"]
    with Store.open(tmp_path / "h100.db") as part:
        part.load(io.StringIO(_export(filled, hardware={"gpu": "H100"})))
        assert [decision.environment.hardware for decision in part.winners()] == [{"gpu": "H100"}]
        assert len(part.runs()) == 1


@pytest.mark.few(1)
def test_an_export_of_winners_is_what_dispatch_needs(filled: Store, store: Store) -> None:
    sent = _export(filled, winners_only=True)
    kinds = [json.loads(text)["kind"] for text in sent.splitlines()]
    assert kinds == ["header", "run", "run", *["decision", "winner"] * 2]
    assert not any(json.loads(text).get("finals") for text in sent.splitlines())
    store.load(io.StringIO(sent))
    assert store.load(io.StringIO(sent)) == 0
    assert sorted(decision.uid for decision in store.winners()) == sorted(one.uid for one in filled.winners())
    assert store.trials() == []
    hardware = [identity for identity in filled.hardware() if identity != {"gpu": "H100"}]
    part = _export(filled, winners_only=True, hardware=hardware, op="softmax").splitlines()
    assert len(part) == 4
    assert [json.loads(text)["kind"] for text in _export(filled, winners_only=True, op="gelu").splitlines()] == [
        "header"
    ]


@pytest.mark.few(1)
def test_winners_first_and_everything_later_is_the_same_as_everything(filled: Store, store: Store) -> None:
    everything = _export(filled)
    store.load(io.StringIO(_export(filled, winners_only=True)))
    assert store.load(io.StringIO(everything)) > 0
    assert sorted(_export(store).splitlines()) == sorted(everything.splitlines())
    assert store.load(io.StringIO(everything)) == 0


def test_of_two_winners_the_later_stays_whichever_comes_first(tmp_path: Path, make: Any) -> None:
    early = make.decision()
    late = make.decision(num_warps=8, created=early.created + timedelta(seconds=1))
    sent = []
    for name, decision in (("a", early), ("b", late)):
        with Store.open(tmp_path / f"{name}.db") as store:
            store.publish(store.start_run(make.environment), decision)
            sent.append(_export(store))
    for name, order in (("ab", sent), ("ba", sent[::-1])):
        with Store.open(tmp_path / f"{name}.db") as store:
            for text in order:
                store.load(io.StringIO(text))
            assert store.winner(make.problem(), make.environment.hardware, {}) == late
            assert len(store.history(make.problem(), make.environment.hardware)) == 2


@pytest.mark.parametrize("url", one_of_each(["sqlite", "postgresql"]), indirect=True)
@pytest.mark.thorough
def test_more_decisions_of_a_run_that_is_nowhere_than_are_added_together_are_refused(
    store: Store, make: Any, tmp_path: Path
) -> None:
    first = make.decision()
    with Store.open(tmp_path / "other.db") as other:
        run = other.start_run(make.environment)
        for warps in range(150):
            other.publish(run, make.decision(num_warps=warps, created=first.created + timedelta(seconds=warps)))
        lines = _export(other).splitlines()
    bare = "\n".join(line for line in lines if json.loads(line)["kind"] != "run")
    with pytest.raises(ExchangeError, match=r"line 2: the run .* is neither in the file nor in the database"):
        store.load(io.StringIO(bare))


def _drop(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda record: record.pop(name)


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda r: r["trial"].pop("status"), r"line 3: trial\.status: Field required"),
        (lambda r: r["trial"].update(status=1), r"line 3: trial\.status: Input should be a valid string"),
        (lambda r: r["trial"].update(median_us="3"), r"line 3: trial\.median_us: .*valid number"),
        (lambda r: r["trial"].update(median_us=float("nan")), "line 3: .*finite number"),
        (lambda r: r["trial"].update(created="2026-01-01T00:00:00"), "line 3: .*no time zone"),
        (lambda r: r["trial"].update(extra=1), r"line 3: trial\.extra: Unexpected keyword argument"),
        (lambda r: r["trial"]["problem"].update(dims={"rows": [1]}), r"line 3: trial\.problem\.dims\.rows"),
        (lambda r: r["trial"]["problem"].update(static=["heads"]), "line 3: .*not in dims"),
        (lambda r: r.update(kind="pickle"), "line 3: .*kind"),
        (lambda r: r.update(run="unknown"), "line 3: the run 'unknown' is neither in the file nor in the database"),
    ],
)
@pytest.mark.parametrize("url", one_of_each(["sqlite", "postgresql"]), indirect=True)
@pytest.mark.few(5)
def test_a_bad_line_is_named_and_nothing_is_stored(
    filled: Store, store: Store, spoil: Callable[[dict[str, Any]], Any], fault: str
) -> None:
    lines = _export(filled).splitlines()
    position = next(index for index, text in enumerate(lines) if '"kind":"trial"' in text)
    lines[2], lines[position] = lines[position], lines[2]
    record = json.loads(lines[2])
    spoil(record)
    lines[2] = json.dumps(record)
    with pytest.raises(ExchangeError, match=fault) as caught:
        store.load(io.StringIO("\n".join(lines)))
    assert "\n" not in caught.value.message
    assert "nothing was imported" in caught.value.hint
    assert store.statistics().runs == 0


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "line 1: expected the header"),
        ("{", "line 1: Invalid JSON"),
        ("[1]", "line 1: "),
        ('{"kind":"winner","decision":"a"}', "line 1: expected the header"),
        ('{"kind":"header","format":"another","version":1}', "line 1: format: Input should be"),
        ('{"kind":"header","format":"kernel-registry tuning results","version":2}', "format version 2, .* reads 1"),
    ],
)
@pytest.mark.parametrize("url", one_of_each(["sqlite", "postgresql"]), indirect=True)
def test_a_file_of_another_kind_is_refused(store: Store, text: str, fault: str) -> None:
    with pytest.raises(ExchangeError, match=fault):
        store.load(io.StringIO(text))


def test_a_winner_without_its_decision_is_refused(store: Store) -> None:
    text = '{"kind":"header"}\n\n{"kind":"winner","decision":"gone"}\n'
    with pytest.raises(ExchangeError, match="line 3: the decision 'gone' is neither"):
        store.load(io.StringIO(text))


@pytest.mark.parametrize("url", one_of_each(["sqlite", "postgresql"]), indirect=True)
def test_a_file_that_is_not_text_is_refused(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with path.open(encoding="utf-8") as stream, pytest.raises(ExchangeError, match="line 1: not UTF-8 text"):
        store.load(stream)


def _export(store: Store, **chosen: Any) -> str:
    stream = io.StringIO()
    count = store.export(stream, **chosen)
    assert count == stream.getvalue().count("\n") - 1
    return stream.getvalue()
