"""Calls of two threads at once meet, also where each thread first makes something for itself."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from registry.artifact import Built
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.other_size import bound_by_call
from registry.dispatch.plans.plan import Candidate
from registry.dispatch.plans.two_threads import results_of_two_threads
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config

CPU = Device.of("cpu")
CALLS = 6
"""Only calls in turns, whose order does not depend on the machine."""


class OwnState(Implementation):
    """Each thread makes tensors for itself at its first call; ``space`` is what a call works in."""

    op, name = "square", "mine.own_state"
    device_types = frozenset({"cpu"})

    def __init__(self, *, shares: bool) -> None:
        self._shares = shares

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        local, shared, ahead = threading.local(), torch.empty(problem.n), threading.Lock()

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            if not hasattr(local, "made"):
                # one thread goes ahead; the other does more operations than that does in its calls of the first round
                count = 0 if ahead.acquire(blocking=False) else 200
                local.made = [torch.add(arguments[0], number) for number in range(count)]
            space = shared if self._shares else torch.empty(problem.n)
            torch.mul(arguments[0], arguments[0], out=space)
            outputs[0].copy_(torch.add(space, 0))

        return run


@pytest.mark.parametrize("shares", [True, False])
def test_shared_memory_is_seen_where_one_thread_begins_late(shares: bool) -> None:
    op = Catalog().op("square")
    problem = op.problem_of({"n": 64, "dtype": "float32"})
    inputs = [(torch.full((64,), 2.0),), (torch.full((64,), 3.0),)]
    plan = bound_by_call(op, Candidate(OwnState(shares=shares), {}), problem, op.arguments(inputs[0]), CPU)
    with torch.no_grad():
        found = results_of_two_threads(plan, inputs, CPU, CALLS)
    assert [len(of_input) for of_input in found] == [CALLS + 1, CALLS - 1]
    pairs = zip(found, (4.0, 9.0), strict=True)
    right = all(bool((one == value).all()) for of_input, value in pairs for (one,) in of_input)
    assert right is not shares
