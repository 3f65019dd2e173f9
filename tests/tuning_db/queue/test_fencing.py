"""Fencing: who has lost the lease publishes nothing, its trials are kept, and a job decides each problem once."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from tuning_db import InvalidRecordError, LostLeaseError, Store
from tuning_db.queue.tables import FleetJobRow

from .conftest import BOTH, Fleet, problems
from .test_leasing import SHORT_S, wait_until_expired


@BOTH
@pytest.mark.few(1)
def test_a_lost_lease_publishes_nothing_and_keeps_its_trials(fleet: Fleet, url: str, make: Any) -> None:
    fleet.plan(problems(4096))
    lost = fleet.takes(fleet.joins("node1"), SHORT_S)
    with Store.open(url, fence=lost.fence) as store:
        run = store.start_run(make.environment)
        wait_until_expired(fleet.queue)
        store.add_trials(run, [make.trial()])
        with pytest.raises(LostLeaseError, match="has expired or was taken over"):
            store.publish(run, make.decision())
        again = fleet.takes(fleet.joins("node2"))
        with pytest.raises(LostLeaseError):
            store.publish(run, make.decision())
        assert (store.winners(), store.statistics().decisions, len(store.trials())) == ([], 0, 1)
    with Store.open(url, fence=again.fence) as store:
        assert store.publish(store.start_run(make.environment), make.decision())
    assert fleet.queue.complete(again.fence)
    assert fleet.queue.status().jobs[0].decided == 1


def test_a_job_decides_a_problem_once(fleet: Fleet, url: str, make: Any) -> None:
    fleet.plan(problems(4096))
    lease = fleet.takes(fleet.joins())
    with Store.open(url, fence=lease.fence) as store:
        run = store.start_run(make.environment)
        first = make.decision()
        assert [store.publish(run, first) for _ in range(2)] == [True, True]
        with pytest.raises(InvalidRecordError, match="has decided this problem already"):
            store.publish(run, make.decision(num_warps=8, previous=first.uid))
        assert [one.uid for one in store.winners()] == [first.uid]
    assert fleet.queue.decided(lease.fence.job) == [("softmax", problems(4096)[0].dims)]


def test_a_winner_of_somebody_else_leaves_the_problem_undecided(fleet: Fleet, url: str, make: Any) -> None:
    fleet.plan(problems(4096))
    lease = fleet.takes(fleet.joins())
    with Store.open(url) as other, Store.open(url, fence=lease.fence) as store:
        first = make.decision()
        assert other.publish(other.start_run(make.environment), first)
        run = store.start_run(make.environment)
        assert not store.publish(run, make.decision(previous="another"))
        assert fleet.queue.decided(lease.fence.job) == []
        assert store.publish(run, make.decision(previous=first.uid))


@BOTH
@pytest.mark.few(1)
def test_decisions_that_are_set_aside_give_way_to_those_that_they_replaced(fleet: Fleet, url: str, make: Any) -> None:
    fleet.plan(problems(1, 2))
    lease = fleet.takes(fleet.joins())
    with Store.open(url) as before:
        run = before.start_run(make.environment)
        old = make.decision(make.problem(rows=1))
        assert before.publish(run, old)
    with Store.open(url, fence=lease.fence) as store:
        run = store.start_run(make.environment)
        assert store.publish(run, make.decision(make.problem(rows=1), num_warps=8, previous=old.uid))
        assert store.publish(run, make.decision(make.problem(rows=2), num_warps=8))
        assert fleet.queue.set_aside(lease.fence, "7% slower than its kind") == 2
        assert [one.uid for one in store.winners()] == [old.uid]
        assert store.statistics().decisions == 3
        with pytest.raises(LostLeaseError):
            store.publish(run, make.decision(make.problem(rows=2)))
    again = fleet.takes(fleet.joins("node2"))
    assert (again.attempt, fleet.queue.decided(again.fence.job)) == (1, [])
    assert [failure.outcome for failure in fleet.queue.status().failures] == ["set aside"]


@pytest.mark.thorough
def test_what_was_replaced_under_other_software_does_not_become_the_winner(fleet: Fleet, url: str, make: Any) -> None:
    from tuning_db import Environment

    fleet.plan(problems(4096))
    lease = fleet.takes(fleet.joins())
    earlier = Environment(make.environment.hardware, {"torch": "2.10"})
    with Store.open(url) as before:
        old = make.decision(environment=earlier)
        assert before.publish(before.start_run(earlier), old)
    with Store.open(url, fence=lease.fence) as store:
        assert store.publish(store.start_run(make.environment), make.decision(previous=old.uid))
        assert fleet.queue.set_aside(lease.fence, "slow") == 1
        assert [one.environment for one in store.winners()] == [earlier]


@BOTH
@pytest.mark.parametrize("taken_over", [False, True])
@pytest.mark.few(1)
def test_decisions_of_a_lost_lease_are_set_aside_and_decided_again(
    fleet: Fleet, url: str, make: Any, taken_over: bool
) -> None:
    fleet.plan(problems(1, 2))
    lost = fleet.takes(fleet.joins())
    with Store.open(url, fence=lost.fence) as store:
        assert store.publish(store.start_run(make.environment), make.decision(make.problem(rows=1)))
        _expire(fleet)
        other = fleet.takes(fleet.joins("node2")) if taken_over else None
        if other is not None:
            assert fleet.queue.decided(other.fence.job) == [("softmax", problems(1)[0].dims)]
            with Store.open(url, fence=other.fence) as second:
                assert second.publish(second.start_run(make.environment), make.decision(make.problem(rows=2)))
            assert fleet.queue.complete(other.fence)
        assert [fleet.queue.set_aside(lost.fence, "slow") for _ in range(2)] == [1, 0]
        assert [one.problem.dims["rows"] for one in store.winners()] == ([2] if taken_over else [])
    again = fleet.takes(fleet.joins("node3"))
    assert list(again.problems) == (problems(1) if taken_over else problems(1, 2))
    assert fleet.queue.decided(again.fence.job) == []
    assert (again.fence.job == lost.fence.job) != taken_over
    assert again.options == lost.options
    assert fleet.lease(fleet.joins("node4")) is None


def test_a_lease_that_is_withdrawn_is_no_attempt_also_the_last_after_it_has_expired(fleet: Fleet) -> None:
    fleet.plan(problems(1), most_attempts=1)
    slow = fleet.takes(fleet.joins())
    _expire(fleet)
    assert fleet.queue.set_aside(slow.fence, "slow") == 0
    again = fleet.takes(fleet.joins("node2"))
    assert (again.fence.job, again.attempt) == (slow.fence.job, 1)
    assert [failure.outcome for failure in fleet.queue.status().failures] == ["set aside"]


def test_what_was_withdrawn_is_decided_again_though_the_job_is_put_down(fleet: Fleet, url: str, make: Any) -> None:
    fleet.plan(problems(1, 2), most_attempts=2)
    slow = fleet.takes(fleet.joins())
    with Store.open(url, fence=slow.fence) as store:
        assert store.publish(store.start_run(make.environment), make.decision(make.problem(rows=1)))
    _expire(fleet)
    fleet.takes(fleet.joins("node2"))
    _expire(fleet)  # the last attempt
    assert fleet.queue.set_aside(slow.fence, "slow") == 1
    again = fleet.takes(fleet.joins("node3"))
    assert (list(again.problems), again.fence.job != slow.fence.job) == (problems(1), True)
    assert fleet.lease(fleet.joins("node4")) is None
    assert fleet.queue.status().failed == 1


def _expire(fleet: Fleet) -> None:
    with fleet.queue._opened.writing() as session:
        session.execute(update(FleetJobRow).values(lease_until=0.0))
