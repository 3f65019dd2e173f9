"""When sampling stops and which samples count: scripted samples, and real ones on the CPU."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from registry.device import Device
from registry.tuner.measure import clocks as clocks_module
from registry.tuner.measure.clocks import Clocks, warm_until_steady
from registry.tuner.measure.copy_floor import copy_sampler
from registry.tuner.measure.interleaving import interleave
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.measure.samplers import ClockSampler, Enqueue, Nothing, Sample, Sampler, ScreenedSampler
from registry.tuner.measure.sampling import Look, sampler_for
from registry.tuner.measure.series import measure

CPU = Device.of("cpu")
# a limit that no busy machine reaches
PROTOCOL = TimingProtocol("perf_counter", 2**25, warmup_us=0.0, limit_us=1e9)
# relative noise of 1%, no two alike
NOISE = [1.0, 1.01, 0.99, 1.005, 0.995, 1.008, 0.992, 1.003, 0.997, 1.006, 0.994, 1.009, 0.991]


class Scripted(Sampler):
    """Samples as told: µs, or (µs, clean)."""

    how = "scripted"

    def __init__(self, script: Iterable[float | tuple[float, bool]]) -> None:
        self._script = iter(script)
        self.covered = False

    def take(self, count: int) -> list[Sample]:
        taken = itertools.islice(self._script, count)
        return [Sample(*entry) if isinstance(entry, tuple) else Sample(entry) for entry in taken]

    def replay(self) -> None:
        self.take(1)

    def cover(self) -> None:
        self.covered = True


class ScriptedGpu:
    """NVML as told: throttled or not at each reading."""

    def __init__(self, throttled: Iterable[tuple[str, ...]], others: frozenset[int] = frozenset()) -> None:
        self._throttled = iter(throttled)
        self._others = others

    def clocks(self) -> Any:
        return SimpleNamespace(sm=1980, memory=3201)

    def throttled(self) -> tuple[str, ...]:
        return next(self._throttled)

    def others(self, own: set[int]) -> frozenset[int]:
        return self._others


def watched(*throttled: tuple[str, ...], others: frozenset[int] = frozenset()) -> Clocks:
    gpu: Any = ScriptedGpu(itertools.chain(throttled, itertools.repeat(())), others)
    return Clocks(CPU, gpu)


# the first sample is the warm-up's
def noisy(scale: float = 1.0) -> Iterable[float]:
    return itertools.chain([5.0], itertools.cycle([10 + scale * 10 * (value - 1) for value in NOISE]))


def test_sampling_ends_as_soon_as_the_interval_is_narrow() -> None:
    found = measure(Scripted([99.0] + [10.0, 10.01] * 50), PROTOCOL)
    assert (found.stop_reason, len(found.samples), found.censored) == ("interval", PROTOCOL.min_samples, False)
    assert found.samples[0] == 10.0, "the warm-up is no sample"
    assert found.details == {"how": "scripted"}


def test_sampling_ends_when_more_would_say_the_same() -> None:
    found = measure(Scripted(noisy(scale=5)), PROTOCOL)
    assert found.stop_reason == "settled"
    assert 2 * PROTOCOL.min_samples <= len(found.samples) < PROTOCOL.max_samples
    assert found.median_us == pytest.approx(10, rel=0.01)


def test_what_drifts_is_sampled_to_the_limit_of_samples() -> None:
    found = measure(Scripted([1.0] + [10 * 1.02**count for count in range(100)]), PROTOCOL)
    assert (found.stop_reason, len(found.samples)) == ("max_samples", PROTOCOL.max_samples)


def test_time_that_is_up_ends_sampling_with_a_few_samples() -> None:
    found = measure(Scripted([1.0] + [10 * 1.1**count for count in range(100)]), replace(PROTOCOL, limit_us=0.0))
    assert (found.stop_reason, len(found.samples)) == ("limit", PROTOCOL.min_censor)


def test_three_samples_are_enough_for_the_hopeless() -> None:
    found = measure(Scripted([1.0, 21.0, 22.0, 23.0] + [1.0] * 50), PROTOCOL, best_us=10.0)
    assert (found.stop_reason, found.samples, found.censored) == ("hopeless", (21.0, 22.0, 23.0), True)
    near = measure(Scripted([1.0, 21.0, 22.0, 19.0] + [19.0] * 50), PROTOCOL, best_us=10.0)
    assert not near.censored
    assert len(near.samples) >= PROTOCOL.min_samples


def test_samples_that_something_else_disturbed_are_left_out_and_counted() -> None:
    script: list[float | tuple[float, bool]] = [(50.0, False), 10.0, 10.0, 10.0]
    found = measure(Scripted([1.0, *script * 10]), PROTOCOL)
    assert set(found.samples) == {10.0}
    assert found.details["spoiled"] >= 2


def test_where_most_samples_are_disturbed_all_count() -> None:
    found = measure(Scripted(itertools.repeat((10.0, False))), PROTOCOL)
    assert (found.median_us, found.stop_reason) == (10.0, "interval")
    assert found.details["spoiled"] == len(found.samples)


def test_samples_of_a_throttled_device_are_dropped_and_taken_again() -> None:
    script = [1.0] + [20.0] * PROTOCOL.min_samples + [10.0] * 50
    found = measure(Scripted(script), PROTOCOL, clocks=watched(("hardware slowdown",)))
    assert set(found.samples) == {10.0}
    assert found.details["dropped"] == PROTOCOL.min_samples
    assert found.details["clocks"] == {"sm_mhz": 1980, "memory_mhz": 3201}


def test_a_device_that_stays_throttled_is_measured_as_it_is_and_says_so() -> None:
    found = measure(Scripted(itertools.repeat(10.0)), PROTOCOL, clocks=watched(*[("power brake",)] * 9))
    assert len(found.samples) == PROTOCOL.min_samples
    assert found.details["clocks"]["throttled"] == ["power brake"]
    assert found.details["dropped"] == 2 * PROTOCOL.min_samples


def test_running_at_the_power_limit_is_no_disturbance() -> None:
    found = measure(Scripted(itertools.repeat(10.0)), PROTOCOL, clocks=watched(("power cap",)))
    assert "dropped" not in found.details
    assert found.details["clocks"]["power_capped"] is True


def test_another_process_on_the_device_marks_the_samples() -> None:
    assert "contended" not in measure(Scripted(itertools.repeat(10.0)), PROTOCOL, clocks=watched()).details
    found = measure(Scripted(itertools.repeat(10.0)), PROTOCOL, clocks=watched(others=frozenset({4711})))
    assert found.details["contended"] is True


def test_every_copy_has_been_launched_when_outputs_are_judged() -> None:
    sampler = Scripted(itertools.repeat(10.0))
    measure(sampler, PROTOCOL)
    assert sampler.covered
    sampler = Scripted(itertools.repeat(10.0))
    interleave({0: sampler}, 1, seed=0)
    assert sampler.covered


def counting(copies: int, pause_s: float = 0.0) -> tuple[list[Enqueue], list[int]]:
    launched = [0] * copies

    def launch(place: int) -> None:
        launched[place] += 1
        time.sleep(pause_s)

    return [lambda place=place: launch(place) for place in range(copies)], launched  # type: ignore[misc]


def choose(launches: list[Enqueue], best_us: float | None = None) -> Sampler:
    protocol = replace(TimingProtocol.of(CPU), warmup_us=0.0)
    return sampler_for(
        launches, capturable=True, working_set=8, protocol=protocol, device=CPU, best_us=best_us
    )  # fmt: skip


def test_a_candidate_far_from_the_best_is_given_up_at_its_first_launches() -> None:
    launches, launched = counting(5, pause_s=0.002)
    sampler = choose(launches, best_us=1.0)
    assert isinstance(sampler, ScreenedSampler)
    found = measure(sampler, PROTOCOL, 1.0)
    assert (found.stop_reason, found.censored, len(found.samples)) == ("screened", True, 3)
    assert launched == [1] * 5, "each copy once, and none for nothing"
    sampler.replay()
    assert launched == [2] * 5
    assert isinstance(choose(launches), ClockSampler), "nothing to compare it with"
    assert isinstance(choose(launches, best_us=1e6), ClockSampler)


class Comparing(Nothing):
    """Counts how often a sampler is compared on known and on new inputs."""

    def __init__(self) -> None:
        self.pairs = 0

    def compare(self, sampler: Sampler) -> bool:
        self.pairs += 1
        return True


@pytest.mark.parametrize(("us", "is_compared"), [(9.0, True), (11.9, True), (12.1, False), (19.9, False)])
def test_only_those_that_may_win_are_compared_on_new_inputs(us: float, is_compared: bool) -> None:
    sampler = Scripted([us] * 200)
    sampler.between = between = Comparing()
    assert not measure(sampler, PROTOCOL, best_us=10.0).censored
    assert (between.pairs > 0) is is_compared


def test_what_the_host_may_have_delayed_screens_nobody_out() -> None:
    protocol = TimingProtocol.of(CPU)
    assert Look((100.0, 90.0), True, 1.0).is_hopeless(10.0, protocol, 10.0)
    assert not Look((100.0, 90.0), False, 1.0).is_hopeless(10.0, protocol, 10.0)
    assert not Look((100.0, 39.0), True, 1.0).is_hopeless(10.0, protocol, 10.0)
    assert not Look((100.0, 90.0), True, 1.0).is_hopeless(None, protocol, 10.0)


def test_calls_on_the_cpu_go_round_all_copies() -> None:
    launches, launched = counting(4)
    sampler = choose(launches)
    assert measure(sampler, replace(PROTOCOL, max_samples=8)).median_us > 0
    assert max(launched) - min(launched) <= 1
    assert sampler.sample() > 0


def test_copies_that_few_long_samples_did_not_reach_are_launched_once() -> None:
    launches, launched = counting(6, pause_s=0.001)
    sampler = choose(launches)
    sampler.take(1)
    sampler.cover()
    assert launched == [1] * 6
    sampler.cover()
    sampler.replay()
    assert min(launched) >= 2


def test_a_sample_that_was_disturbed_is_taken_again_for_the_finals() -> None:
    assert Scripted([(50.0, False), (40.0, False), 10.0, 11.0]).sample() == 10.0
    assert Scripted([(50.0, False), (40.0, False), (30.0, False), 10.0]).sample() == 30.0


def test_a_copy_is_timed_on_the_cpu() -> None:
    sampler = copy_sampler(2**20, CPU, TimingProtocol.of(CPU))
    assert isinstance(sampler, ClockSampler)
    assert sampler._warm is not None
    assert sampler._warm not in sampler._launches
    assert sampler.sample() > 0


def test_in_turns_everyone_meets_everyone_in_every_round() -> None:
    timed = interleave({place: Scripted(itertools.count(place)) for place in (0, 2, 5)}, 7, seed=1)
    assert timed.times == {place: [float(place + count) for count in range(7)] for place in (0, 2, 5)}
    for order in zip(*timed.positions.values(), strict=True):
        assert sorted(order) == [0, 1, 2]
    assert len({*zip(*timed.positions.values(), strict=True)}) > 1, "the order changes"
    again = interleave({place: Scripted(itertools.count(place)) for place in (0, 2, 5)}, 7, seed=1)
    assert again.positions == timed.positions


def test_who_fails_in_a_round_is_out_and_the_others_go_on() -> None:
    class Quits(Scripted):
        def take(self, count: int) -> list[Sample]:
            raise SystemExit(0)

    timed = interleave({0: Scripted(itertools.repeat(1.0)), 1: Quits([])}, 3, seed=0)
    assert timed.times == {0: [1.0] * 3}
    assert isinstance(timed.faults[1], SystemExit)


def test_a_round_of_the_finals_that_met_a_throttled_device_is_timed_again() -> None:
    samplers = {0: Scripted(itertools.count(0)), 1: Scripted(itertools.count(100))}
    timed = interleave(samplers, 3, 0, watched((), ("hardware slowdown",)))
    assert timed.times == {0: [0, 2, 3], 1: [100, 102, 103]}


@pytest.mark.parametrize(
    ("slowed", "left"),
    [(5, 24), (6, 23), (17, 12), (18, 29), (29, 29)],
    ids=["as many", "one less", "half", "more", "all"],
)
def test_rounds_that_met_a_throttled_device_count_only_where_most_did(slowed: int, left: int) -> None:
    samplers = {0: Scripted(itertools.count(0)), 1: Scripted(itertools.count(100))}
    timed = interleave(samplers, 24, 0, watched(*[("power brake",)] * slowed))
    assert {place: len(times) for place, times in timed.times.items()} == {0: left, 1: left}
    if left < 29:
        assert all(time >= slowed for time in timed.times[0]), "none of the throttled rounds"
    assert not timed.faults


def test_an_answer_that_takes_long_is_asked_again_where_it_was_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks_module, "_SLOW_S", -1.0)
    monkeypatch.setattr(clocks_module, "_REUSE", 1e9)
    clocks = watched(("hardware slowdown",), (), ("hardware slowdown",))
    readings = [clocks.read() for _ in range(3)]
    assert [reading.throttled for reading in readings if reading] == [("hardware slowdown",), (), ()]


def test_warming_ends_when_neither_the_time_nor_the_clock_changes_any_more() -> None:
    times = iter([9.0, 8.0, 7.0, 6.0, 5.0, *[4.0] * 9])
    clocks = iter([1980, 1980, 1980, 1980, 1980, 1980, 1500, *[1700] * 9])
    assert warm_until_steady(lambda: next(times), lambda: next(clocks))
    assert next(clocks) == 1700
    assert len(list(clocks)) == 4


def test_warming_ends_where_nothing_becomes_steady_and_nobody_tells_the_clock() -> None:
    unsteady = itertools.cycle([1.0, 2.0])
    assert not warm_until_steady(lambda: next(unsteady), lambda: None)


def test_of_a_slow_launch_there_is_one_look_two_copies_and_no_warm_up() -> None:
    launches, launched = counting(6, pause_s=0.003)
    protocol = replace(TimingProtocol.of(CPU), limit_us=2_000.0, turn_us=5_000.0, warmup_us=1_000.0)
    sampler = sampler_for(launches, capturable=True, working_set=8, protocol=protocol, device=CPU)
    assert (sampler.copies, launched) == (2, [1, 0, 0, 0, 0, 0])
    found = measure(sampler, protocol)
    assert (found.stop_reason, len(found.samples)) == ("limit", protocol.min_censor)
    assert launched == [2, 2, 0, 0, 0, 0]
    sampler.replay()
    assert launched == [3, 3, 0, 0, 0, 0]


def test_a_long_sample_that_was_disturbed_stays() -> None:
    assert Scripted([(2e6, False), 10.0]).sample() == 2e6


def test_somebody_is_told_before_each_sample_of_a_round() -> None:
    told: list[str] = []
    interleave({place: Scripted(itertools.count()) for place in range(2)}, 3, 0, go_on=lambda: told.append("go on"))
    assert len(told) == 2 * 3 + 2
    told.clear()
    measure(Scripted(noisy()), PROTOCOL, go_on=lambda: told.append("go on"))
    assert len(told) > 1
