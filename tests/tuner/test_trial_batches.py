"""Trials written together: a failed write loses none, and a decision refers to the trial that is stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from registry.tuner import trial_batches
from registry.tuner.jobs import Outcome
from registry.tuner.planning.problems import ProblemPlan
from registry.tuner.trial_batches import TrialBatches
from tuning_db import Store, Trial

from ..tuning_db.conftest import Make, make, postgresql_server, postgresql_url
from .test_storing import candidates, plans, recorder, tell, uids

__all__ = ["make", "plans", "postgresql_server", "postgresql_url"]

LONG_S = 3600.0


class Written:
    """Keeps what it is told to write, call by call; raises while it is ``away``."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.away = False

    def __call__(self, trials: Sequence[Trial]) -> Sequence[Trial]:
        if self.away:
            raise ConnectionError
        self.calls.append([one.uid for one in trials])
        return trials


@pytest.fixture
def server_store(postgresql_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store on a server; trials wait there until they must be written."""
    monkeypatch.setattr(trial_batches, "WITHIN_S", LONG_S)
    with Store.open(postgresql_url) as opened:
        yield opened


def test_each_trial_is_written_as_it_comes_or_those_of_a_while_together(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials, alone, together = [make.trial(num_warps=number) for number in range(70)], Written(), Written()
    monkeypatch.setattr(trial_batches, "WITHIN_S", LONG_S)
    batches = TrialBatches(alone, together=False)
    for one in trials[:2]:
        batches.add(one)
    assert alone.calls == [[one.uid] for one in trials[:2]]
    batches = TrialBatches(together, together=True)
    for one in trials:
        assert batches.add(one) is one
    assert together.calls == [[one.uid for one in trials[:64]]]
    batches.write_due()
    assert len(together.calls) == 1
    monkeypatch.setattr(trial_batches, "WITHIN_S", 0.0)
    batches.write_due()
    batches.write_due()
    assert together.calls[1:] == [[one.uid for one in trials[64:]]]


def test_what_could_not_be_written_is_written_later(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_batches, "WITHIN_S", LONG_S)
    written, first, second = Written(), make.trial(num_warps=1), make.trial(num_warps=2)
    batches = TrialBatches(written, together=True)
    batches.add(first)
    written.away = True
    with pytest.raises(ConnectionError):
        batches.write()
    written.away = False
    batches.add(second)
    batches.write()
    assert written.calls == [[first.uid, second.uid]]


def test_trials_are_on_the_server_before_anything_that_refers_to_them(
    server_store: Store, plans: list[ProblemPlan]
) -> None:
    one = recorder(server_store)
    mine = [tell(one, plans[0], number) for number in (0, 1)]
    assert server_store.trials() == []
    one.decision(plans[0], candidates(plans[0])[0], mine[0], median_us=1.0)
    assert {trial.uid for trial in server_store.trials()} == set(mine)
    tell(one, plans[1], 0)
    one.end({})
    assert server_store.statistics().trials == 3


def test_a_refuted_trial_is_older_than_what_refutes_it(server_store: Store, plans: list[ProblemPlan]) -> None:
    one = recorder(server_store)
    right = tell(one, plans[0], 0)
    wrong = one.refuted(plans[0], candidates(plans[0])[0], Outcome("wrong_result", "", (), None)).uid
    assert [trial.uid for trial in server_store.trials()] == [wrong, right]
    assert uids(recorder(server_store).known_trials(plans[0])) == [right, wrong]


@pytest.mark.thorough
def test_of_two_runs_that_try_a_candidate_the_decision_refers_to_the_trial_that_is_stored(
    server_store: Store, plans: list[ProblemPlan]
) -> None:
    one, other = recorder(server_store), recorder(server_store)
    theirs, alone = tell(other, plans[0], 0), tell(other, plans[0], 1)
    mine = tell(one, plans[0], 0)
    other.end({})
    decision = one.decision(plans[0], candidates(plans[0])[0], mine, median_us=1.0)
    assert decision.trial_uid == theirs
    assert {trial.uid for trial in server_store.trials()} == {theirs, alone}
    assert uids(one.news(plans[0])) == [alone], "what was found in place of its own is no news"


@pytest.mark.parametrize("status", ["ok", "crash"])
@pytest.mark.few(1)
def test_a_batch_has_some_trials_that_are_new(server_store: Store, make: Make, status: str) -> None:
    first, second = (server_store.start_run(make.environment) for _ in range(2))
    rows: list[Any] = [make.trial(num_warps=number, status=status) for number in range(3)]
    again: list[Any] = [make.trial(num_warps=number) for number in (2, 3, 4)]

    def add(run: str, trials: Sequence[Trial]) -> list[str]:
        return [one.uid for one in server_store.add_new_trials(run, trials, since=0, statuses={"ok"})]

    assert add(first, rows) == [one.uid for one in rows]
    expected = rows[2] if status == "ok" else again[0]
    assert add(second, again) == [expected.uid, again[1].uid, again[2].uid]
    assert add(second, again) == [expected.uid, again[1].uid, again[2].uid], "once more is harmless"
    assert server_store.statistics().trials == (5 if status == "ok" else 6)
    assert add(second, []) == []
