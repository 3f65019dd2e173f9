"""Jobs that several workers share: each takes its own in order, and then those that others have left."""

from __future__ import annotations

from registry.tuner.workers.stretches import Stretches


def taken(stretches: Stretches[int], *places: int) -> list[int | None]:
    return [stretches.take(place) for place in places]


def test_each_takes_neighbours() -> None:
    stretches = Stretches[int](2)
    stretches.put(range(5))
    assert taken(stretches, 0, 1, 0, 1, 1) == [0, 2, 1, 3, 4]
    assert taken(stretches, 0, 1) == [None, None]


def test_what_is_dealt_longest_first_ends_at_about_the_same_time() -> None:
    stretches = Stretches[int](2)
    stretches.deal([10, 9, 8, 1, 1, 1])
    assert taken(stretches, 0, 1) == [10, 9]
    assert taken(stretches, 1, 0, 1, 0) == [1, 8, 1, 1]
    assert taken(stretches, 0, 1) == [None, None]


def test_who_has_none_left_takes_over_the_last_of_the_longest() -> None:
    stretches = Stretches[int](3)
    stretches.put(range(9))
    assert taken(stretches, 0, 0, 0, 1) == [0, 1, 2, 3]
    assert taken(stretches, 0, 0, 0, 0, 0) == [8, 5, 7, 4, 6]
    assert taken(stretches, 0, 1, 2) == [None] * 3


def test_a_job_that_was_left_undone_is_taken_by_another() -> None:
    stretches = Stretches[int](2)
    stretches.put([1])
    job = stretches.take(1)
    assert job == 1
    stretches.put_back(job)
    assert taken(stretches, 1, 1) == [1, None]


def test_one_worker_takes_all_in_order() -> None:
    stretches = Stretches[int](1)
    stretches.put(range(3))
    stretches.put([3])
    assert taken(stretches, 0, 0, 0, 0, 0) == [0, 1, 2, 3, None]
