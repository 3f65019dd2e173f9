"""Searches: trials by problem, environment and protocol, with what the compiler says of their kernels as JSON."""

from __future__ import annotations

import json

import pytest

from tuning_db import Store

from .conftest import Make


@pytest.mark.few(1)
def test_a_search_tells_the_resources_of_its_trials(store: Store, make: Make) -> None:
    takes = {"registers": 96, "spill_bytes": 0}
    run = store.start_run(make.environment)
    store.add_trials(
        run,
        [
            make.trial(num_warps=1, details={"resources": takes, "device": "cuda:0"}),
            make.trial(num_warps=2, details={"device": "cuda:0"}),
            make.trial(num_warps=4, status="crash", median_us=None, message="signal 11", details={"resources": "odd"}),
        ],
    )
    with store.each_search(op="softmax") as searches:
        (search,) = searches
    assert [attempt.candidate.config["num_warps"] for attempt in search.attempts] == [1, 2, 4]
    assert [attempt.message for attempt in search.attempts] == ["", "", "signal 11"]
    resources = [json.loads(attempt.resources or "null") for attempt in search.attempts]
    assert resources == [takes, None, "odd"]
