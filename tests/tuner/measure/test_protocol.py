"""The protocol: what it says of a device, and that nothing in it can change without its key changing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pytest

from registry.contracts import SQUARE
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate
from registry.errors import InvalidArgumentError
from registry.tuner.jobs import Outcome
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.measure.samplers import ClockSampler, Nothing, copies_at_hand, copies_of, needs_flush
from registry.tuner.measure.sampling import Turn, rounds, turn_of
from registry.tuner.planning.problems import plan
from registry.tuner.storing import RunStore
from registry.tuner.verify.session import Session
from tuning_db import Protocol as StoredProtocol
from tuning_db import Store

MB = 2**20
CPU = Device.of("cpu")
GPU = replace(CPU, type="cuda", name="NVIDIA H200", architecture="sm_90", l2_bytes=60 * MB)


def key(protocol: TimingProtocol) -> str:
    return StoredProtocol(protocol.regime, protocol.details).key


@pytest.mark.parametrize("name", [field.name for field in fields(TimingProtocol)])
def test_every_field_is_part_of_the_stored_protocols_key(name: str) -> None:
    protocol = TimingProtocol.of(GPU)
    value = getattr(protocol, name)
    others: dict[str, Any] = {"clock": "perf_counter", "regime": "hot", "flush": not value}
    other = others[name] if name in others else value + 1
    assert key(replace(protocol, **{name: other})) != key(protocol)


def test_a_protocol_survives_being_sent_as_json() -> None:
    for protocol in (TimingProtocol.of(GPU), TimingProtocol.of(CPU, "hot")):
        assert TimingProtocol(**json.loads(json.dumps(dict(protocol.details)))) == protocol


def test_a_trial_is_stored_under_its_protocol_and_regime(catalog: Catalog, store: Store) -> None:
    op = catalog.op("square")
    problem = op.problem_of({"n": 8, "dtype": "float32"})
    candidate = Candidate(catalog.implementation("square", "torch.native"), {})
    (planned,) = plan([problem], catalog, CPU, ["torch.native"])
    for regime in ("cold", "hot"):
        recorder = RunStore(store, CPU, TimingProtocol.of(CPU, regime), {})
        recorder.trial(planned, candidate, Outcome("ok", median_us=1.0, samples=(1.0,), stop_reason="interval"))
        hot = TimingProtocol.of(CPU, "hot")
        found = store.trials(protocol=StoredProtocol(hot.regime, hot.details))
        assert [trial.protocol.details["regime"] for trial in found] == ["hot"] * (regime == "hot")


def test_winners_are_kept_apart_by_regime() -> None:
    assert TimingProtocol.of(GPU).regime == "cold"
    assert key(TimingProtocol.of(GPU)) != key(TimingProtocol.of(GPU, "hot"))
    with pytest.raises(InvalidArgumentError, match=r"'warm'.*\n.*cold or hot"):
        TimingProtocol.of(GPU, "warm")


@pytest.mark.parametrize(
    ("working_set", "copies", "flush"),
    [
        (64 * 1024, 16, True),
        (7 * MB, 16, True),
        (8 * MB, 16, False),
        (20 * MB, 7, False),
        (200 * MB, 2, False),
        (480 * MB, 1, False),
    ],
)
def test_a_cold_cache_takes_enough_copies_or_a_flush(working_set: int, copies: int, flush: bool) -> None:
    protocol = TimingProtocol.of(GPU)
    assert copies_of(working_set, protocol) == copies
    assert needs_flush(working_set, protocol) is flush
    if copies > 1 and not flush:
        assert (copies - 1) * working_set >= 2 * protocol.cache_bytes


def test_a_hot_cache_has_as_many_copies_as_stay_there() -> None:
    for device in (CPU, GPU):
        protocol = TimingProtocol.of(device, "hot")
        assert (copies_of(1, protocol), copies_of(1000 * MB, protocol)) == (16, 1)
        for size in (MB // 4, MB, 8 * MB):
            assert copies_of(size, protocol) in {1, 16} or copies_of(size, protocol) * size <= protocol.cache_bytes / 2
        assert not needs_flush(1, protocol)
    hot, memory_bytes = TimingProtocol.of(GPU, "hot"), 141 * 2**30
    assert [copies_at_hand(size, hot, memory_bytes) for size in (1, MB, 20 * MB)] == [64, 30, 1]
    assert turn_of(64, 3.0, 64 * 1024, hot) == Turn(48)


@pytest.mark.parametrize(("launch_us", "count"), [(2.0, 16), (20.0, 1)])
def test_between_launches_on_one_copy_the_clock_is_read_unless_they_are_short(launch_us: float, count: int) -> None:
    rounds = list[int]()

    class Counting(Nothing):
        def __call__(self, copies: Sequence[int], *, last: bool = True) -> None:
            rounds.append(len(copies))

    sampler = ClockSampler([lambda: None], TimingProtocol.of(CPU, "hot"), launch_us)
    sampler.between = Counting()
    sampler.take(1)
    assert set(rounds[:-1]) == {count}


@pytest.mark.parametrize(
    ("working_set", "launch_us", "turn"),
    [
        (64 * 1024, 2.0, Turn(32, 1, flushed=True)),
        (8 * MB, 4.0, Turn(32)),
        (8 * MB, 2.0, Turn(64)),
        (20 * MB, 8.0, Turn(14)),
        (20 * MB, 100.0, Turn(7)),
        (200 * MB, 60.0, Turn(2)),
        # a launch that reads little of its large arguments
        (200 * MB, 2.0, Turn(2, 25)),
    ],
)
def test_a_sample_on_a_gpu_comes_to_no_copy_twice_where_there_is_room(
    working_set: int, launch_us: float, turn: Turn
) -> None:
    protocol, memory_bytes = TimingProtocol.of(GPU), 141 * 2**30
    available = copies_at_hand(working_set, protocol, memory_bytes)
    assert turn_of(available, launch_us, working_set, protocol) == turn
    # with as many copies as make each other cold, as many launches
    few = turn_of(copies_of(working_set, protocol), launch_us, working_set, protocol)
    assert few.copies * few.times == turn.copies * turn.times
    once = turn_of(available, launch_us, working_set, protocol, once=True)
    assert (once.copies, once.times) == (turn.copies, 1)
    assert once.flushed is (turn.flushed or turn.times > 1)


def test_a_session_has_a_copy_for_each_launch_of_a_sample_and_on_a_cpu_one_to_warm_up() -> None:
    problem = SQUARE.problem_of({"n": 1000, "dtype": "float32"})
    for protocol, copies in ((TimingProtocol.of(GPU), 32), (TimingProtocol.of(GPU, "hot"), 64),
                             (TimingProtocol.of(CPU), 17), (TimingProtocol.of(CPU, "hot"), 17)):  # fmt: skip
        session = Session(SQUARE, problem, CPU, protocol, 7)
        assert len(session.rotation.copies) == copies
        assert session.warms is (protocol.clock == "perf_counter")


def test_on_a_cpu_nothing_is_flushed() -> None:
    assert not needs_flush(1024, TimingProtocol.of(CPU))
    assert copies_of(1024, TimingProtocol.of(CPU)) == 16


def test_a_sample_is_whole_rounds_that_last_long_enough_as_far_as_64_launches_do() -> None:
    protocol = TimingProtocol.of(GPU)
    assert rounds(7, 10.0, protocol) == 2
    assert rounds(7, 100.0, protocol) == 1
    assert rounds(1, 0.5, protocol) == 64
    assert rounds(16, 2.0, protocol) == 4
