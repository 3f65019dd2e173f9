"""On a simulated device each launch of an op that mutates its arguments has fresh ones, and some are judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from registry.contracts import FUSED_ADD_RMS_NORM
from registry.tuner.measure.device_samplers import BacklogSampler, GraphSampler, SingleSampler
from registry.tuner.measure.samplers import Enqueue, Sampler
from registry.tuner.verify.session import Session
from registry.tuner.verify.timed import TimedPlan
from registry.tuner.verify.verify import WrongError, verify_timed

from ..going_through import CPU, PROTOCOL, Custom, timed_on
from ..simulated_device import Simulated, simulate

OP = FUSED_ADD_RMS_NORM
DIMS = {"rows": 4, "cols": 512, "weight": True, "dtype": "float32"}
SAMPLES = 30
PAUSE_US = 20.0

Samples = Callable[[list[Enqueue]], Sampler]
KINDS: list[Samples] = [
    lambda launches: GraphSampler(launches, CPU),
    lambda launches: BacklogSampler(launches, 5.0),
    lambda launches: SingleSampler(launches, 5.0),
]


class Norm:
    """The op's own reference, unless ``skips`` says that it is not needed; honest until ``cheats``."""

    def __init__(self, device: Simulated) -> None:
        self.device = device
        self.cheats = False
        self.skipped = 0

    def __call__(self, x: torch.Tensor, residual: torch.Tensor, *others: Any) -> None:
        if self.cheats and self.skips(x):
            self.skipped += 1
        else:
            OP.reference(x, residual, *others)
        self.device.queue(3.0)

    def skips(self, x: torch.Tensor) -> bool:
        return False


class SkipsAll(Norm):
    def skips(self, x: torch.Tensor) -> bool:
        return True


class SkipsEveryOtherCall(Norm):
    """On each copy."""

    def __init__(self, device: Simulated) -> None:
        super().__init__(device)
        self._calls: dict[int, int] = {}

    def skips(self, x: torch.Tensor) -> bool:
        self._calls[x.data_ptr()] = self._calls.get(x.data_ptr(), 0) + 1
        return self._calls[x.data_ptr()] % 2 == 0


class WorksAfterAPause(Norm):
    """What comes right after another launch is one of a sample."""

    _ended_us = 0.0

    def skips(self, x: torch.Tensor) -> bool:
        pause_us = max(self.device.host_us, self.device.device_us) - self._ended_us
        self._ended_us = max(self.device.host_us, self.device.device_us)
        return pause_us < PAUSE_US


class WorksInTheMidst(WorksAfterAPause):
    """The reverse: what comes after a pause is a check."""

    def skips(self, x: torch.Tensor) -> bool:
        return not super().skips(x)


class SkipsWhatLooksAsLastTime(Norm):
    def __init__(self, device: Simulated) -> None:
        super().__init__(device)
        self._seen: dict[int, list[float]] = {}

    def skips(self, x: torch.Tensor) -> bool:
        few = x.view(-1)[::100].tolist()
        seen, self._seen[x.data_ptr()] = self._seen.get(x.data_ptr()), few
        return seen == few


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    return simulate(monkeypatch)


def sampled(norm: Norm, kind: Samples) -> tuple[TimedPlan, Sampler, Session]:
    """After samples in which it may cheat, and checks after timing, in which it is honest."""
    session = Session(OP, OP.problem_of(DIMS), CPU, PROTOCOL, 7)
    timed, _ = timed_on(session, Custom(OP.name, norm), {})
    sampler = kind(timed.launches)
    sampler.between = timed.between
    # so many that half of the samples cannot be missed
    timed.between.keep_up_to(24)
    norm.cheats = True
    sampler.take(SAMPLES)
    norm.cheats = False
    verify_timed(timed, sampler, session)
    return timed, sampler, session


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cheat", [SkipsAll, SkipsEveryOtherCall, WorksAfterAPause])
@pytest.mark.few(5)
def test_who_leaves_work_out_in_samples_is_refused(device: Simulated, cheat: type[Norm], kind: Samples) -> None:
    norm = cheat(device)
    timed, sampler, _ = sampled(norm, kind)
    if isinstance(sampler, SingleSampler) and cheat is WorksAfterAPause:
        assert not norm.skipped, "each launch comes after a pause"
        timed.between.check_kept()
        return
    assert norm.skipped
    with pytest.raises(WrongError, match="a sample left a wrong output"):
        timed.between.check_kept()


def test_who_skips_where_a_launch_is_a_sample_of_its_own_is_refused(device: Simulated) -> None:
    timed, _, _ = sampled(WorksInTheMidst(device), KINDS[2])
    with pytest.raises(WrongError, match="a sample left a wrong output"):
        timed.between.check_kept()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("honest", [Norm, SkipsWhatLooksAsLastTime])
@pytest.mark.few(3)
def test_no_argument_looks_as_it_did_and_who_is_right_passes(
    device: Simulated, honest: type[Norm], kind: Samples
) -> None:
    norm = honest(device)
    timed, _, session = sampled(norm, kind)
    timed.between.check_kept()
    assert not norm.skipped
    assert all(bool(flag) for flag in session.rotation.unchanged(session.case("normal").pristine, [2]).values())


def test_each_sample_is_queued_alone_and_any_may_be_judged(device: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(OP, OP.problem_of(DIMS), CPU, PROTOCOL, 7)
    timed, _ = timed_on(session, Custom(OP.name, Norm(device)), {})
    sampler, kept, between = GraphSampler(timed.launches, CPU), list[int](), timed.between
    sampler.between = between
    assert between.alone
    keep = between._keep_mutation  # type: ignore[attr-defined]
    # the first of so many is kept for sure, each later one with a smaller chance
    monkeypatch.setattr(between, "_keep_mutation", lambda copy, was: kept.append(copy) or keep(copy, was))
    sampler.take(SAMPLES)
    between.settle()
    assert between._met == SAMPLES
    assert len(kept) >= 1
    assert set(kept) <= set(range(len(timed.launches)))


def test_the_cache_is_filled_with_other_data_after_all_that_is_written(device: Simulated) -> None:
    session = Session(OP, OP.problem_of(DIMS), CPU, PROTOCOL, 7)
    timed, _ = timed_on(session, Custom(OP.name, Norm(device)), {})
    writes = list[int]()
    between = timed.between
    between._flush = lambda: writes.append(session.rotation.writes)  # type: ignore[attr-defined]
    for number in range(3):
        between(range(len(timed.launches)))
        assert len(writes) == number + 1
        assert writes[-1] == session.rotation.writes
