"""On a GPU each timed launch does its own work: it finds nothing that another launch of its sample left."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import torch

from registry.artifact import Built
from registry.contract import Op
from registry.contracts import FUSED_ADD_RMS_NORM, SQUARE
from registry.contracts.decoder.kv_cache_append import KV_CACHE_APPEND
from registry.device import Device
from registry.dispatch.plans.other_size import bound_by_call
from registry.dispatch.plans.plan import Candidate
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem, Value
from registry.space import Config
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.measure.samplers import Sampler
from registry.tuner.measure.sampling import sampler_for
from registry.tuner.measure.series import measure
from registry.tuner.verify.session import Session
from registry.tuner.verify.timed import TimedPlan
from registry.tuner.verify.verify import WrongError, verify_timed

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

SMALL, MEDIUM = 10_002, 2**20 + 2
NORM: dict[str, Value] = {"rows": 64, "cols": 4096, "weight": True, "dtype": "bfloat16"}
PAUSE_NS = 20_000
"""Launches of one sample follow each other more quickly."""


@pytest.fixture(scope="module")
def device() -> Device:
    return Device.best()


class Calling(Implementation):
    """Calls a function of the outputs and the arguments."""

    name = "test.calling"
    device_types = frozenset({"cuda"})

    def __init__(self, op: str, function: Callable[..., Any]) -> None:
        self.op = op
        self._function = function

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> Any:
            return self._function(*outputs, *arguments)

        return run


@contextmanager
def timed_on(
    device: Device, op: Op, dims: dict[str, Value], function: Callable[..., Any], *, capturable: bool = True
) -> Iterator[tuple[TimedPlan, Callable[[], Sampler], Session]]:
    """Ready to be timed, as a worker does it."""
    protocol = TimingProtocol.of(device)
    session = Session(op, op.problem_of(dims), device, protocol, 7)
    implementation = Calling(op.name, function)
    plan = bound_by_call(op, Candidate(implementation, {}), session.problem, session.arguments, device)
    timed = TimedPlan(plan, session)
    made: list[Sampler] = []

    def sampler() -> Sampler:
        found = sampler_for(
            timed.launches, capturable=capturable, working_set=session.working_set, protocol=protocol, device=device,
            warm=timed.warm, once=op.parsed.mutates,
        )  # fmt: skip
        found.between = timed.between
        timed.keep(found.copies)
        made.append(found)
        return found

    try:
        yield timed, sampler, session
    finally:
        for each in made:
            each.close()
        timed.release()


class Meets:
    """Squares that count launches which find inputs and output as the launch before on that copy left them."""

    def __init__(self) -> None:
        self.again = torch.zeros((), dtype=torch.int64, device="cuda")
        self.launches = torch.zeros((), dtype=torch.int64, device="cuda")
        self._left: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def know(self, session: Session) -> None:
        # in a capture they would be filled anew at each replay
        for (x,) in session.rotation.copies:
            self._left[x.data_ptr()] = torch.full_like(x, torch.nan), torch.full_like(x, torch.nan)

    def __call__(self, y: torch.Tensor, x: torch.Tensor) -> None:
        if (left := self._left.get(x.data_ptr())) is not None:
            self.again.add_((left[0] == x).all() & (left[1] == y).all())
            self.launches.add_(1)
        torch.mul(x, x, out=y)
        if left is not None:
            left[0].copy_(x)
            left[1].copy_(y)


@pytest.mark.parametrize("capturable", [True, False])
@pytest.mark.parametrize("n", [SMALL, MEDIUM])
def test_no_launch_of_a_sample_finds_what_another_left(device: Device, n: int, capturable: bool) -> None:
    meets, dims = Meets(), dict[str, Value](n=n, dtype="float32")
    with timed_on(device, SQUARE, dims, meets, capturable=capturable) as (_, ready, session):
        meets.know(session)
        sampler = ready()
        sampler.take(1)
        meets.again.zero_()
        meets.launches.zero_()
        found = measure(sampler, session.protocol)
        assert found.samples
        assert int(meets.launches) > 100
        assert int(meets.again) == 0


@pytest.mark.parametrize("n", [SMALL, MEDIUM])
def test_a_sample_launches_on_as_many_copies_as_it_has_launches(device: Device, n: int) -> None:
    def square(y: torch.Tensor, x: torch.Tensor) -> None:
        torch.mul(x, x, out=y)

    with timed_on(device, SQUARE, {"n": n, "dtype": "float32"}, square) as (timed, ready, session):
        sampler = ready()
        assert sampler.how.startswith("graph")
        assert sampler._turn.launches == sampler._turn.copies == len(timed.launches)  # type: ignore[attr-defined]
        found = measure(sampler, session.protocol)
        verify_timed(timed, sampler, session)
        timed.between.check_kept()
        assert 0.1 < (found.median_us or 0.0) < 100


# --- ops that mutate their arguments ---


def norm(*values: Any) -> None:
    FUSED_ADD_RMS_NORM.reference(*values)


def capturing() -> bool:
    return torch.cuda.is_current_stream_capturing()


def captures_nothing(*values: Any) -> None:
    if not capturing():
        norm(*values)


def is_timed() -> bool:
    """Whether the sampler is among the callers, as it is of launches that are not captured."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "take":
        frame = frame.f_back
    return frame is not None


def without_collection(*values: Any) -> None:
    if gc.isenabled():
        norm(*values)


class OnTheDevice:
    """In a graph, leaves the arguments as they are where the device says that it is to be."""

    def __init__(self) -> None:
        self.skipped = torch.zeros((), dtype=torch.int64, device="cuda")

    def know(self, session: Session) -> None:
        """Make what it needs for each copy."""

    def skips(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def end(self) -> None:
        """Called at the end of a launch in a graph."""

    def __call__(self, x: torch.Tensor, residual: torch.Tensor, *others: Any) -> None:
        if not capturing():
            norm(x, residual, *others)
            return
        skip, was = self.skips(x), (x.clone(), residual.clone())
        self.skipped.add_(skip)
        norm(x, residual, *others)
        for tensor, before in zip((x, residual), was, strict=True):
            tensor.copy_(torch.where(skip, before, tensor))
        self.end()


class SkipsEveryOtherCall(OnTheDevice):
    def know(self, session: Session) -> None:
        self._calls = {
            values[0].data_ptr(): torch.zeros((), dtype=torch.int64, device="cuda")
            for values in session.rotation.copies
        }

    def skips(self, x: torch.Tensor) -> torch.Tensor:
        calls = self._calls.get(x.data_ptr())
        assert calls is not None
        return calls.add_(1) % 2 == 0


class WorksAfterAPause(OnTheDevice):
    """Reads the device's clock."""

    def know(self, session: Session) -> None:
        from .cheats_by_device_pauses import read

        self._read = read
        self._began, self._ended = torch.zeros((2, 1), dtype=torch.int64, device="cuda")
        self._read(self._began)

    def skips(self, x: torch.Tensor) -> torch.Tensor:
        self._read(self._began)
        return (self._began - self._ended < PAUSE_NS)[0]

    def end(self) -> None:
        self._read(self._ended)


class SkipsWhatLooksAsLastTime(OnTheDevice):
    def know(self, session: Session) -> None:
        self._seen = {values[0].data_ptr(): torch.zeros_like(values[0]) for values in session.rotation.copies}

    def skips(self, x: torch.Tensor) -> torch.Tensor:
        seen = self._seen[x.data_ptr()]
        same = (seen == x).all()
        seen.copy_(x)
        return same


def sampled(device: Device, function: Callable[..., Any], dims: dict[str, Value] | None = None,
            op: Op = FUSED_ADD_RMS_NORM, *, capturable: bool = True) -> Callable[[], None]:  # fmt: skip
    """Samples, checks after timing; returns what judges the samples that were kept."""
    with timed_on(device, op, dims or NORM, function, capturable=capturable) as (timed, ready, session):
        timed.between.keep_up_to(24)
        if isinstance(function, OnTheDevice):
            function.know(session)
        sampler = ready()
        found = measure(sampler, session.protocol)
        assert len(found.samples) >= session.protocol.min_samples
        verify_timed(timed, sampler, session)
        return timed.between.check_kept


@pytest.mark.parametrize("capturable", [True, False])
def test_whoever_is_right_with_arguments_that_it_mutates_passes(device: Device, capturable: bool) -> None:
    sampled(device, norm, capturable=capturable)()


@pytest.mark.parametrize("dims", list(KV_CACHE_APPEND.examples)[:3])
def test_what_launches_append_to_a_cache_is_judged(device: Device, dims: dict[str, Value]) -> None:
    def append(*values: Any) -> None:
        KV_CACHE_APPEND.reference(*values)

    def skips(*values: Any) -> None:
        if not is_timed():
            KV_CACHE_APPEND.reference(*values)

    # torch's indexing by a mask waits for the device
    sampled(device, append, dict(dims), KV_CACHE_APPEND, capturable=False)()
    with pytest.raises(WrongError, match="a sample left a wrong output"):
        sampled(device, skips, dict(dims), KV_CACHE_APPEND, capturable=False)()


def test_whoever_mutates_nothing_in_samples_is_refused(device: Device) -> None:
    check = sampled(device, captures_nothing)
    with pytest.raises(WrongError, match="a sample left a wrong output"):
        check()


def test_calls_after_timing_are_made_without_the_collection_of_garbage_as_captures_are(device: Device) -> None:
    with pytest.raises(WrongError, match="after timing: "):
        sampled(device, without_collection)


@pytest.mark.parametrize("cheat", [SkipsEveryOtherCall, WorksAfterAPause])
def test_whoever_leaves_out_some_launches_of_a_graph_is_refused(device: Device, cheat: type[OnTheDevice]) -> None:
    function = cheat()
    check = sampled(device, function)
    assert int(function.skipped) > 0
    with pytest.raises(WrongError, match="a sample left a wrong output"):
        check()


def test_no_argument_looks_as_it_did_at_the_launch_before(device: Device) -> None:
    function = SkipsWhatLooksAsLastTime()
    sampled(device, function)()
    assert int(function.skipped) == 0
