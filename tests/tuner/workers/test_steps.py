"""A step's limit is one of each sample: who is at work says so, though not after every sample."""

from __future__ import annotations

import pytest

from registry.tuner.workers.steps import Steps


def test_a_step_that_goes_on_is_announced_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now, announced = [0.0], list[tuple[float, str]]()
    monkeypatch.setattr("registry.tuner.workers.steps.time.perf_counter", lambda: now[0])
    steps = Steps(lambda step: announced.append((now[0], step)))
    steps("measure")
    for _ in range(10):
        now[0] += 0.4
        steps.go_on()
    assert announced == [(0.0, "measure"), *((pytest.approx(at), "measure") for at in (1.2, 2.4, 3.6))]
