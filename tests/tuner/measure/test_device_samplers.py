"""How device time is told from the host's, on a simulated device: a queue that works while the host goes on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from registry.device import Device
from registry.tuner.measure import device_samplers
from registry.tuner.measure.device_samplers import (
    BacklogSampler,
    DeviceClock,
    Flushes,
    GraphSampler,
    SingleSampler,
    parts_of,
)
from registry.tuner.measure.samplers import Enqueue, Nothing

from ..simulated_device import Simulated, simulate


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    return simulate(monkeypatch)


def launches(device: Simulated, us: float, count: int, host_us: float = 5.0) -> list[Enqueue]:
    return [lambda: device.queue(us, host_us)] * count


CPU = Device.of("cpu")


def test_a_graph_is_timed_without_the_host(device: Simulated) -> None:
    sampler = GraphSampler(launches(device, 2.0, 64), CPU)
    assert sampler.how == "graph"
    for us, clean in sampler.take(5):
        assert us == pytest.approx(2.0)
        assert clean


def test_a_flush_is_in_the_graph_and_not_in_the_time(device: Simulated) -> None:
    sampler = GraphSampler(launches(device, 3.0, 16), CPU, Flushes(1024, torch.device("cpu")))
    assert sampler.how == "graph+flush"
    assert [us for us, _ in sampler.take(3)] == pytest.approx([3.0] * 3)


def test_launches_behind_one_read_of_a_flush_are_others_than_those_behind_the_next(
    device: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued: list[object] = []
    monkeypatch.setattr(device_samplers, "_sum", lambda *_, out: queued.append("read"))
    flushes = Flushes(1024, torch.device("cpu"))
    sampler = BacklogSampler([lambda place=place: queued.append(place) for place in range(4)], 5.0, flushes)  # type: ignore[misc]
    sampler.replay()
    assert queued == ["read", 0, 1, "read", 2, 3]


class Noting(Nothing):
    """Notes which samples may be judged."""

    def __init__(self) -> None:
        self.last: list[bool] = []

    def __call__(self, copies: Sequence[int], *, last: bool = True) -> None:
        self.last.append(last)


def test_nobody_knows_which_of_several_samples_may_be_judged(device: Simulated) -> None:
    for sampler in (GraphSampler(launches(device, 2.0, 64), CPU), SingleSampler(launches(device, 600.0, 4), 5.0)):
        sampler.between = noting = Noting()
        assert len(sampler.take(200)) == len(noting.last) == 200
        assert noting.last[-1]
        assert 30 < sum(noting.last) < 110, "one in three"
        assert {len(list(parts_of(3))) for _ in range(200)} == {1, 2, 3}


def test_the_flush_is_timed_anew_after_a_while_alone(device: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    host_ns = 1
    monkeypatch.setattr(device_samplers, "perf_counter_ns", lambda: host_ns)
    flushed: list[object] = []
    baseline = device_samplers.Baseline(lambda: (flushed.append(None), device.queue(30.0)))
    assert baseline.us() == pytest.approx(30.0)
    first = len(flushed)
    assert [baseline.us() for _ in range(9)] == pytest.approx([30.0] * 9)
    assert len(flushed) == first, "a time of the last ms speaks for the samples after it"
    host_ns += 20_000_001
    assert baseline.us() == pytest.approx(30.0)
    assert len(flushed) == first + 1


def test_queued_launches_are_timed_alike(device: Simulated) -> None:
    flushes = Flushes(1024, torch.device("cpu"))
    for sampler, how in (
        (BacklogSampler(launches(device, 3.0, 16), 5.0), "backlog"),
        (BacklogSampler(launches(device, 3.0, 16), 5.0, flushes), "backlog+flush"),
        (SingleSampler(launches(device, 3.0, 2), 5.0), "single"),
    ):
        assert [us for us, _ in sampler.take(3)] == pytest.approx([3.0] * 3)
        assert sampler.how == how


def test_a_late_host_is_noticed_and_gets_a_longer_head_start(device: Simulated) -> None:
    clock = DeviceClock()
    work = launches(device, 3.0, 1, host_us=200.0)
    tries = [clock.time(work)[0] for _ in range(5)]
    assert [clean for _, clean in tries] == [False, False, False, True, True]
    assert tries[0].us > 100
    assert tries[-1].us == pytest.approx(3.0)
    assert not clock.waits


def test_a_launch_that_waits_for_the_device_keeps_the_hosts_time_and_says_so(device: Simulated) -> None:
    def waits() -> None:
        device.queue(3.0)
        device.wait()
        device.host_us += 20.0

    sampler = BacklogSampler([waits], 5.0)
    taken = sampler.take(8)
    assert sampler.how == "host"
    assert taken[-1].clean
    assert taken[-1].us >= 20.0


def test_one_late_sample_among_many_does_not_spoil_the_others(device: Simulated) -> None:
    late = iter([5.0, 5.0, 500.0, 5.0, 5.0])
    sampler = SingleSampler([lambda: device.queue(100.0, next(late))], 5.0)
    taken = sampler.take(5)
    assert [clean for _, clean in taken] == [True, True, False, True, True]
    assert [us for us, clean in taken if clean] == pytest.approx([100.0] * 4)


def test_long_launches_go_round_the_copies_and_the_rest_are_covered(device: Simulated) -> None:
    seen: list[int] = []

    def launch(place: int) -> None:
        seen.append(place)
        device.queue(600.0)

    copies: list[Enqueue] = [lambda place=place: launch(place) for place in range(5)]  # type: ignore[misc]
    sampler = SingleSampler(copies, 5.0, launched=2)
    sampler.take(2)
    assert seen == [2, 3]
    sampler.cover()
    assert seen == [2, 3, 4]
    sampler.replay()
    assert seen[3:] == [0, 1, 2, 3, 4]
