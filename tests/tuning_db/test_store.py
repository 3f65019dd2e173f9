"""What the store keeps and gives back; every test runs on SQLite and on PostgreSQL."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import event

from tuning_db import (
    CandidateKey,
    Environment,
    Final,
    InvalidRecordError,
    Protocol,
    Store,
    TuningDBError,
    schema,
    writing,
)


def test_a_trial_comes_back_as_it_was(store: Store, make: Any) -> None:
    zone = timezone(timedelta(hours=5))
    trial = make.trial(
        message="line one\nünïcode",
        samples=(1.1, 2.2e-7),
        details={"max_error": 1e-9, "clocks": [1980, 1975], "nested": {"a": None}},
        censored=True,
        stop_reason="slower than the best",
        artifact_hash="ab" * 32,
        created=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=zone),
    )
    store.add_trials(store.start_run(make.environment), [trial])
    (found,) = store.trials()
    assert found == trial
    assert found.created.tzinfo == UTC


@pytest.mark.few(1)
def test_types_of_dimensions_and_configs_survive(store: Store, make: Any) -> None:
    problem = make.problem(causal=True, scale=1.0, count=1)
    config = {"flag": False, "zero": 0, "ratio": 2.0, "text": "a\"b\\'"}
    trial = replace(make.trial(problem), candidate=CandidateKey("a.b", "f", config))
    store.add_trials(store.start_run(make.environment), [trial])
    (found,) = store.trials()
    assert [(name, type(value)) for name, value in sorted(found.problem.dims.items())] == [
        (name, type(value)) for name, value in sorted(problem.dims.items())
    ]
    assert {name: type(value) for name, value in found.candidate.config.items()} == {
        name: type(value) for name, value in config.items()
    }


@pytest.mark.few(1)
def test_output_of_crashed_processes_can_be_stored(store: Store, make: Any) -> None:
    trial = make.trial(status="crash", median_us=None, message="abort\0\udcff", details={"max_error": float("nan")})
    store.add_trials(store.start_run(make.environment), [trial])
    (found,) = store.trials()
    assert found.message == "abort\ufffd?"
    assert found.details == {"max_error": "nan"}


@pytest.mark.few(1)
def test_only_what_is_new_is_read_again(store: Store, make: Any) -> None:
    mine, other = (store.start_run(make.environment) for _ in range(2))
    assert store.newest_trial() == (0, False)
    first, second, elsewhere = make.trial(), make.trial(), make.trial(make.problem(rows=77))
    store.add_trials(mine, [first])
    since, others = store.newest_trial(0, mine)
    assert not others
    store.add_trials(other, [second, elsewhere])
    newest, others = store.newest_trial(since, mine)
    assert others
    asked = (first.problem, first.environment, first.protocol)
    number, found = store.trials_since(since, *asked)
    assert (since < number <= newest, found) == (True, [second])
    assert store.trials_since(0, *asked) == (number, [first, second])
    assert store.trials_since(newest, *asked) == (newest, [])
    assert store.newest_trial(newest, mine) == (newest, False)


def test_adding_a_trial_twice_keeps_one(store: Store, make: Any) -> None:
    run, trial = store.start_run(make.environment), make.trial()
    store.add_trials(run, [trial, trial])
    store.add_trials(run, [trial])
    assert store.trials() == [trial]


@pytest.mark.few(1)
def test_trials_are_filtered_by_everything_that_names_them(store: Store, make: Any) -> None:
    run = store.start_run(make.environment)
    elsewhere = Environment({"gpu": "H100"}, make.environment.software)
    upgraded = Environment(make.environment.hardware, {"torch": "2.15"})
    trials = [
        make.trial(),
        make.trial(make.problem(rows=1)),
        make.trial(make.problem(op="rms_norm")),
        make.trial(environment=elsewhere),
        make.trial(environment=upgraded),
        make.trial(protocol=Protocol("warm")),
        make.trial(status="timeout"),
    ]
    store.add_trials(run, trials)
    newest_first = trials[::-1]
    assert store.trials() == newest_first
    assert store.trials(limit=2) == newest_first[:2]
    assert store.trials(make.problem(rows=1)) == [trials[1]]
    assert store.trials(op="rms_norm") == [trials[2]]
    assert store.trials(environment=elsewhere) == [trials[3]]
    assert store.trials(environment=upgraded) == [trials[4]]
    assert store.trials(protocol=Protocol("warm")) == [trials[5]]
    assert store.trials(status="timeout") == [trials[6]]
    assert store.trials(make.problem(), environment=make.environment, protocol=make.protocol, status="ok") == [
        trials[0]
    ]


@pytest.mark.few(1)
def test_thousands_of_trials_with_new_candidates_fit_in_one_call(store: Store, make: Any) -> None:
    trials = [make.trial(make.problem(rows=n % 7), num_warps=n) for n in range(1200)]
    store.add_trials(store.start_run(make.environment), trials)
    assert {trial.uid for trial in store.trials()} == {trial.uid for trial in trials}
    assert store.statistics().candidates == 1200


@pytest.mark.few(1)
def test_a_trial_of_an_unknown_run_is_refused(store: Store, make: Any) -> None:
    with pytest.raises(InvalidRecordError, match="no run 'nowhere'"):
        store.add_trials("nowhere", [make.trial()])
    assert store.trials() == []


@pytest.mark.few(1)
def test_a_run_tells_when_and_where_it_was(store: Store, make: Any) -> None:
    run = store.start_run(make.environment, {"command": "tune"})
    assert store.runs()[0].ended is None
    store.end_run(run, {"aa_noise": 0.004})
    (found,) = store.runs()
    assert (found.uid, found.environment, found.details) == (run, make.environment, {"command": "tune"})
    assert found.summary == {"aa_noise": 0.004}
    assert found.ended is not None
    assert found.started <= found.ended


def test_the_first_decision_becomes_the_winner_with_its_evidence(store: Store, make: Any) -> None:
    run = store.start_run(make.environment)
    decision = make.decision(
        ratio=1.1, lo=1.05, hi=1.2, aa=0.004, baselines={"torch.native": 2.5}, trial_uid="t", previous=None
    )
    finals = [
        Final(decision.candidate, "candidate", 0, 0, 1, 10.5),
        Final(decision.candidate, "copy", 0, 0, 2, 10.6),
        Final(None, "floor", 0, 0, 0, 9.0),
        Final(make.candidate(implementation="torch.native"), "candidate", 0, 1, 0, 20.0),
    ]
    assert store.publish(run, decision, finals)
    assert store.winner(make.problem(), make.environment.hardware, make.environment.software) == decision
    assert store.finals(decision.uid) == finals


def test_publishing_is_refused_when_somebody_else_was_first(store: Store, make: Any) -> None:
    run = store.start_run(make.environment)
    first, late = make.decision(), make.decision(num_warps=8)
    assert store.publish(run, first)
    assert not store.publish(run, late, [Final(late.candidate, "candidate", 0, 0, 0, 1.0)])
    assert _winner(store, make) == first
    assert late in store.history(make.problem(), make.environment.hardware)
    assert len(store.finals(late.uid)) == 1

    second = make.decision(num_warps=8, previous=first.uid)
    assert store.publish(run, second)
    assert not store.publish(run, make.decision(num_warps=16, previous=first.uid))
    assert _winner(store, make) == second


def test_of_many_who_beat_the_same_winner_one_succeeds(store: Store, make: Any) -> None:
    run = store.start_run(make.environment)
    incumbent = make.decision()
    store.publish(run, incumbent)
    results: list[bool] = []
    start = threading.Barrier(8)

    def challenge(number: int) -> None:
        decision = make.decision(num_warps=number, previous=incumbent.uid)
        start.wait()
        results.append(store.publish(run, decision, [Final(decision.candidate, "candidate", 0, 0, 0, 1.0)]))

    _together(8, challenge)
    assert sorted(results) == [False] * 7 + [True]
    assert len(store.history(make.problem(), make.environment.hardware)) == 9


def test_of_many_first_decisions_one_succeeds(store: Store, make: Any) -> None:
    run = store.start_run(make.environment)
    results: list[bool] = []
    _together(8, lambda number: results.append(store.publish(run, make.decision(num_warps=number))))
    assert sorted(results) == [False] * 7 + [True]


def test_threads_that_add_the_same_identities_do_not_deadlock(store: Store, make: Any) -> None:
    run = store.start_run(make.environment)

    def add(number: int) -> None:
        rows = range(20) if number % 2 else range(19, -1, -1)
        store.add_trials(run, [make.trial(make.problem(rows=n), num_warps=n) for n in rows])

    _together(8, add)
    assert len(store.trials()) == 160
    assert store.statistics().problems == 20


@pytest.mark.few(1)
def test_the_winner_is_this_softwares_else_the_newest_others(store: Store, make: Any) -> None:
    run = store.start_run(make.environment)
    hardware, old, new = make.environment.hardware, {"torch": "2.9"}, {"torch": "2.10"}
    newer = make.decision(environment=Environment(hardware, new))
    older = make.decision(environment=Environment(hardware, old), created=newer.created - timedelta(days=1))
    assert store.publish(run, newer)
    assert store.publish(run, older)
    assert store.winner(make.problem(), hardware, old) == older
    assert store.winner(make.problem(), hardware, new) == newer
    assert store.winner(make.problem(), hardware, {"torch": "3"}) == newer
    assert store.winner(make.problem(), {"gpu": "H100"}, new) is None
    assert store.winner(make.problem(rows=5), hardware, new) is None
    assert store.winner(make.problem(), hardware, new, regime="warm") is None


@pytest.mark.few(1)
def test_a_winner_under_new_software_may_name_the_one_it_beat_under_the_old(store: Store, make: Any) -> None:
    run = store.start_run(make.environment)
    before = make.decision()
    store.publish(run, before)
    after = make.decision(environment=Environment(make.environment.hardware, {"torch": "9"}), previous=before.uid)
    assert store.publish(run, after)
    assert len(store.winners()) == 2


def test_winners_are_found_by_what_neighbours_share(store: Store, make: Any) -> None:
    run = store.start_run(make.environment)
    near = [make.decision(make.problem(rows=rows)) for rows in (1, 16, 256)]
    other = [
        make.decision(make.problem(cols=32000)),
        make.decision(make.problem(op="rms_norm")),
        make.decision(make.problem(rows=7), environment=Environment({"gpu": "H100"}, {})),
        make.decision(make.problem(rows=8), protocol=Protocol("warm")),
    ]
    for decision in (*near, *other):
        assert store.publish(run, decision)
    found = store.winners(
        op="softmax", op_version=1, static_key=make.problem().static_key, hardware=make.environment.hardware
    )
    assert found == near[::-1]
    assert store.winners(op="softmax", op_version=2) == []
    assert len(store.winners()) == 6
    assert len(store.winners(regime="warm")) == 1


@pytest.mark.few(1)
def test_an_op_may_change_which_dimensions_are_static(store: Store, make: Any) -> None:
    run = store.start_run(make.environment)
    before = make.decision()
    store.publish(run, before)
    changed = replace(before.problem, static=("dtype",))
    store.add_trials(run, [make.trial(changed)])
    assert [decision.uid for decision in store.winners(static_key=changed.static_key)] == [before.uid]
    assert store.winners(static_key=before.problem.static_key) == []


@pytest.mark.few(1)
def test_history_is_newest_first_and_keeps_predecessors(store: Store, make: Any) -> None:
    run = store.start_run(make.environment)
    first = make.decision()
    second = make.decision(num_warps=8, previous=first.uid)
    store.publish(run, first)
    store.publish(run, second)
    assert store.history(make.problem(), make.environment.hardware) == [second, first]
    assert store.history(make.problem(rows=5), make.environment.hardware) == []


@pytest.mark.few(1)
def test_statistics_count(store: Store, make: Any) -> None:
    run = store.start_run(make.environment)
    store.add_trials(run, [make.trial(), make.trial(num_warps=8)])
    store.publish(run, make.decision())
    found = store.statistics()
    assert (found.runs, found.trials, found.problems, found.candidates) == (1, 2, 1, 2)
    assert (found.decisions, found.winners, found.schema_version) == (1, 1, schema.LATEST)
    assert found.size_bytes > 0


def test_a_store_opened_again_still_holds_everything(store: Store, url: str, make: Any) -> None:
    run, decision = store.start_run(make.environment), make.decision()
    store.publish(run, decision)
    store.close()
    for options in ({}, {"create": False}, {"create": False, "migrate": False}):
        with Store.open(url, **options) as again:
            assert _winner(again, make) == decision


@pytest.mark.few(1)
def test_a_closed_store_says_so(store: Store, make: Any) -> None:
    store.close()
    with pytest.raises(TuningDBError, match="was closed"):
        store.trials()


def _winner(store: Store, make: Any) -> Any:
    return store.winner(make.problem(), make.environment.hardware, make.environment.software)


def _together(count: int, action: Any) -> None:
    faults: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            action(number)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


@pytest.mark.few(1)
def test_identities_that_are_stored_are_not_asked_for_again(store: Store, make: Any) -> None:
    run = store.start_run(make.environment)
    store.add_trials(run, [make.trial()])
    statements: list[str] = []
    engine = store._opened.writer
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    store.add_trials(run, [make.trial()])
    assert len([text for text in statements if text.startswith(("SELECT", "INSERT", "UPDATE"))]) == 2
    store.add_trials(run, [make.trial(make.problem(rows=7), num_warps=8)])
    assert [trial.problem.dims["rows"] for trial in store.trials()].count(7) == 1
    assert len(store.trials()) == 3


@pytest.mark.few(1)
def test_identities_of_a_transaction_that_failed_are_asked_for_again(
    store: Store, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.start_run(make.environment)
    with monkeypatch.context() as patched:
        patched.setattr(writing, "add_trials", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.add_trials(run, [make.trial()])
    trial = make.trial()
    store.add_trials(run, [trial])
    assert store.trials() == [trial]
