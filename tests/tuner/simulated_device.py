"""A simulated device: a queue that works while the host goes on, for samplers of device time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from registry.tuner.measure import device_samplers


class Simulated:
    """A device and its host, each with a clock in µs. The device starts what is queued when it was queued, or later."""

    def __init__(self) -> None:
        self.host_us = self.device_us = 0.0
        self.events: dict[Any, float] = {}

    def queue(self, device_us: float, host_us: float = 5.0) -> None:
        self.host_us += host_us
        self.device_us = max(self.device_us, self.host_us) + device_us

    def record(self, event: Any, stream: object) -> None:
        self.queue(0.0, host_us=1.0)
        self.events[event] = self.device_us

    def query(self, event: Any) -> bool:
        return self.events[event] <= self.host_us

    def wait(self, event: Any = None) -> None:
        self.host_us = max(self.host_us, self.device_us)

    def elapsed_ms(self, start: Any, end: Any) -> float:
        return (self.events[end] - self.events[start]) / 1e3


class SimulatedGraph:
    """Queues at once, in 10 µs of the host, all that its launches queue one by one."""

    device: Simulated

    def __init__(self, enqueue: Callable[[], object], _device: object) -> None:
        self._enqueue = enqueue

    def replay(self) -> None:
        began = self.device.host_us
        start = max(self.device.device_us, began)
        idle = Simulated()
        idle.device_us = 1e9
        self.device.__dict__, kept = idle.__dict__, self.device.__dict__
        self._enqueue()
        work = idle.device_us - 1e9
        self.device.__dict__ = kept
        self.device.host_us = began + 10.0
        self.device.device_us = max(start, self.device.host_us) + work

    def close(self) -> None:
        """Nothing is held."""


def simulate(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    """Let samplers of device time use a simulated device, which is returned."""
    simulated = Simulated()
    for name, replacement in {
        "_Event": lambda enable_timing: object(),
        "_record": simulated.record,
        "_query": simulated.query,
        "_wait": simulated.wait,
        "_elapsed_ms": simulated.elapsed_ms,
        "_set_stream": lambda stream: None,
        "_sleep": lambda cycles: simulated.queue(cycles / 2000),
        "_sum": lambda *_, out: simulated.queue(30.0),
        "Graph": SimulatedGraph,
    }.items():
        monkeypatch.setattr(device_samplers, name, replacement)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "a stream")
    monkeypatch.setattr(SimulatedGraph, "device", simulated, raising=False)
    return simulated
