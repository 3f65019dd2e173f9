"""The planner: groups of problems that share compiled kernels, what is called most first, bad input refused at once."""

from __future__ import annotations

import pytest

from registry.discovery.catalog import Catalog
from registry.errors import InvalidArgumentError, UnknownNameError
from registry.fleet.planner import grouped, options_of, plan_fleet, stored_options
from registry.problem import Problem
from registry.tuner.limits import Budget
from registry.tuner.options import TuneOptions
from tuning_db import JobQueue
from tuning_db.queue.entries import Added, Fence

from .conftest import queue_squares, square


def softmax(rows: int, cols: int) -> Problem:
    return Problem("softmax", {"rows": rows, "cols": cols, "dtype": "float32"})


def test_a_job_holds_problems_that_share_variants_and_no_more_than_it_may(catalog: Catalog) -> None:
    wanted = [softmax(rows, cols) for cols in (100, 200) for rows in (1, 2, 3)]
    counts = {wanted[0]: 7, wanted[4]: 2}
    groups = grouped([*wanted, square(4)], counts, catalog, 2)
    assert [[(one.op, one.dims.get("rows"), one.dims.get("cols"), one.count) for one in group] for group in groups] == [
        [("softmax", 1, 100, 7), ("softmax", 2, 100, 0)],
        [("softmax", 3, 100, 0)],
        [("softmax", 1, 200, 0), ("softmax", 2, 200, 2)],
        [("softmax", 3, 200, 0)],
        [("square", None, None, 0)],
    ]


@pytest.mark.thorough
def test_what_is_called_most_is_leased_first(file_queue: JobQueue, catalog: Catalog) -> None:
    from ..tuning_db.queue.conftest import worker

    wanted = [square(4), softmax(1, 100)]
    planned = plan_fleet(
        file_queue, wanted, ["cpu", "NVIDIA H200"], catalog=catalog, options=TuneOptions(), counts={wanted[1]: 9}
    )
    assert (planned.added.jobs, planned.added.problems, planned.problems) == (4, 4, 2)
    one = worker(device="cpu")
    file_queue.register(one)
    lease = file_queue.lease(one.uid, ["cpu"], list(file_queue.open_plans(["cpu"])), 60)
    assert lease is not None
    assert (lease.op, lease.problems[0].count) == ("softmax", 9)


def test_options_reach_the_worker() -> None:
    options = TuneOptions(Budget(9.0, 5), implementations=("a", "b"), retune=True, regime="hot", sampler="tpe")
    fence = Fence("job", 3)
    found = options_of(stored_options(options), fence, 7.0)
    assert (found.budget, found.implementations, found.retune) == (Budget(9.0, 5), ("a", "b"), True)
    assert (found.regime, found.sampler, found.patience_s, found.fence) == ("hot", "tpe", 7.0, fence)
    assert found.all_sizes
    assert found.details == {"job": "job", "token": 3}


def test_what_every_worker_would_refuse_is_not_queued(file_queue: JobQueue, catalog: Catalog) -> None:
    with pytest.raises(UnknownNameError, match=r"none\.such"):
        plan_fleet(
            file_queue, [square(4)], ["cpu"], catalog=catalog, options=TuneOptions(implementations=["none.such"])
        )
    with pytest.raises(InvalidArgumentError, match="no device to plan for"):
        plan_fleet(file_queue, [square(4)], [], catalog=catalog, options=TuneOptions())
    with pytest.raises(InvalidArgumentError, match="attempts: 0"):
        queue_squares(file_queue, [4], attempts=0)
    assert file_queue.status().jobs == []


def test_versions_of_one_op_do_not_depend_on_what_else_is_planned(file_queue: JobQueue, catalog: Catalog) -> None:
    def plan(*wanted: Problem) -> Added:
        return plan_fleet(file_queue, wanted, ["cpu"], catalog=catalog, options=TuneOptions()).added

    assert plan(square(4), softmax(1, 100)) == Added(2, 2, 0)
    assert plan(square(4)) == Added(0, 0, 1)
    assert plan(softmax(1, 100), softmax(2, 100)) == Added(1, 1, 1)
    assert len(file_queue.waiting()) == 3
