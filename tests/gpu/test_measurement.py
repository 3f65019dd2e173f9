"""Sampling on a GPU: every way of it, what capture leaves behind, the copy floor, a steady clock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from registry.correctness.bits import as_bits
from registry.device import Device
from registry.problem import TensorSpec
from registry.tuner.measure.capture import CaptureError, Graph, try_capture
from registry.tuner.measure.clocks import Clocks
from registry.tuner.measure.copy_floor import copy_sampler
from registry.tuner.measure.device_samplers import BacklogSampler, DeviceClock, GraphSampler, SingleSampler
from registry.tuner.measure.family import is_of_the_run
from registry.tuner.measure.interleaving import interleave
from registry.tuner.measure.nvml import gpu_of
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.measure.rotation import Rotation
from registry.tuner.measure.samplers import Enqueue, Sampler, ScreenedSampler, copies_of, needs_flush
from registry.tuner.measure.sampling import sampler_for
from registry.tuner.measure.secret_elements import FlippedElements
from registry.tuner.measure.series import measure
from registry.tuner.measure.stack import Stack

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

SMALL, MEDIUM, LARGE = 1024, 2**22, 2**28
COPIES = 4


@pytest.fixture(scope="module")
def device() -> Device:
    return Device.best()


def squares(n: int, copies: int) -> tuple[list[Enqueue], list[torch.Tensor]]:
    inputs = [torch.full((n,), 3.0, device="cuda") for _ in range(copies)]
    outputs = [torch.zeros_like(x) for x in inputs]
    pairs = zip(inputs, outputs, strict=True)
    return [lambda x=x, y=y: torch.mul(x, x, out=y) for x, y in pairs], outputs  # type: ignore[misc]


def choose(launches: list[Enqueue], device: Device, *, capturable: bool = True, working_set: int = 8 * MEDIUM,
           protocol: TimingProtocol | None = None, best_us: float | None = None) -> Sampler:  # fmt: skip
    return sampler_for(
        launches, capturable=capturable, working_set=working_set, protocol=protocol or TimingProtocol.of(device),
        device=device, best_us=best_us,
    )  # fmt: skip


@pytest.mark.parametrize("regime", ["cold", "hot"])
@pytest.mark.parametrize(
    ("n", "capturable", "kind", "how"),
    [
        (MEDIUM, True, GraphSampler, "graph"),
        (MEDIUM, False, BacklogSampler, "backlog"),
        (SMALL, True, GraphSampler, "graph"),
        (SMALL, False, BacklogSampler, "backlog"),
        (LARGE, True, SingleSampler, "single"),
    ],
)
def test_each_sampler_launches_on_every_copy(
    device: Device, regime: str, n: int, capturable: bool, kind: type, how: str
) -> None:
    protocol = replace(TimingProtocol.of(device, regime), single_above_us=200.0)
    launches, outputs = squares(n, copies_of(8 * n, protocol))
    sampler = choose(launches, device, capturable=capturable, working_set=8 * n, protocol=protocol)
    assert type(sampler) is kind
    found = measure(sampler, protocol, clocks=Clocks.of(device))
    assert found.details["how"] == how + ("+flush" if needs_flush(8 * n, protocol) else "")
    assert len(found.samples) >= protocol.min_samples
    assert min(found.samples) > 0.1, "a launch takes time, also when that of a flush is subtracted"
    torch.cuda.synchronize()
    assert all(bool((y == 9.0).all()) for y in outputs)
    for y in outputs:
        y.zero_()
    sampler.replay()
    torch.cuda.synchronize()
    assert all(bool((y == 9.0).all()) for y in outputs)
    sampler.close()


def test_a_small_launch_is_timed_alike_whether_it_is_captured_or_queued(device: Device) -> None:
    protocol = TimingProtocol.of(device)
    launches, _ = squares(2**18, copies_of(8 * 2**18, protocol))
    samplers = {
        place: choose(launches, device, capturable=capturable, working_set=8 * 2**18)
        for place, capturable in enumerate((True, False))
    }
    timed = interleave(samplers, 10, seed=0)
    one, other = (sorted(times)[5] for times in timed.times.values())
    assert 1 / 3 < one / other < 3


def test_a_hopeless_candidate_is_not_even_captured(device: Device) -> None:
    n = 4 * MEDIUM
    launches, outputs = squares(n, copies_of(8 * n, TimingProtocol.of(device)))
    sampler = choose(launches, device, working_set=8 * n, best_us=0.01)
    assert isinstance(sampler, ScreenedSampler)
    found = measure(sampler, TimingProtocol.of(device), 0.01)
    assert (found.stop_reason, found.censored) == ("screened", True)
    torch.cuda.synchronize()
    assert all(bool((y == 9.0).all()) for y in outputs)


def test_what_cannot_be_captured_is_timed_otherwise_and_says_why(device: Device) -> None:
    x = torch.ones(MEDIUM, device="cuda")
    sampler = choose([lambda: x.sum().item()], device, working_set=x.nbytes)
    assert type(sampler) is BacklogSampler
    assert sampler.refused
    found = measure(sampler, TimingProtocol.of(device))
    assert found.details["how"] == "host", "it waits for the device, so that the host's time counts"
    assert found.details["capture_refused"] == sampler.refused
    assert min(found.samples) > 0


def test_host_time_is_hidden_however_slow_the_host_is(device: Device) -> None:
    x = torch.zeros(SMALL, device="cuda")

    def slowly() -> None:
        sum(range(5_000))
        x.add_(1)

    clock = DeviceClock()
    taken = [clock.time([slowly])[0] for _ in range(8)]
    assert taken[-1].clean
    assert not clock.waits


def second_copy_fails() -> tuple[list[Enqueue], torch.Tensor]:
    """What the trial capture of the first copy does not find out."""
    x = torch.ones(MEDIUM, device="cuda")
    return [lambda: x.mul(2), lambda: x.sum().item()], x


def leaves_the_stream() -> tuple[list[Enqueue], torch.Tensor]:
    x, other = torch.ones(MEDIUM, device="cuda"), torch.cuda.Stream()

    def launch() -> None:
        with torch.cuda.stream(other):
            x.mul(2)
        raise ValueError("not while capturing")

    return [launch], x


@pytest.mark.parametrize("make", [second_copy_fails, leaves_the_stream])
def test_a_failed_capture_leaves_allocator_generator_and_streams_as_they_were(
    device: Device, make: Callable[[], tuple[list[Enqueue], torch.Tensor]]
) -> None:
    launches, x = make()
    torch.cuda.synchronize()
    before, current = torch.cuda.memory_allocated(), torch.cuda.current_stream()

    def enqueue() -> Any:
        return [launch() for launch in launches]

    for _ in range(3):
        with pytest.raises(CaptureError):
            Graph(enqueue, device.torch)
    assert torch.cuda.current_stream() == current
    assert not torch.cuda.is_current_stream_capturing()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
    assert torch.randn(8, device="cuda").isfinite().all(), "the default generator is not left capturing"
    torch.cuda.empty_cache()
    y = torch.zeros_like(x)
    graph = Graph(lambda: torch.mul(x, 5, out=y), device.torch)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((y == 5 * x).all())
    graph.close()


def test_trying_a_capture_launches_nothing_and_says_what_is_wrong(device: Device) -> None:
    x = torch.zeros(SMALL, device="cuda")
    try_capture(lambda: x.add_(1), device.torch)
    torch.cuda.synchronize()
    assert bool((x == 0).all())
    with pytest.raises(CaptureError, match="captur"):
        try_capture(lambda: x.sum().item(), device.torch)
    with pytest.raises(CaptureError, match="ValueError: no"):
        try_capture(lambda: (_ for _ in ()).throw(ValueError("no")), device.torch)
    assert x.add_(1).sum().item() == SMALL


def test_a_copy_is_timed_whatever_its_size(device: Device) -> None:
    for size in (64, 2**20, 2**26):
        sampler = copy_sampler(size, device, TimingProtocol.of(device))
        assert sampler.sample() > 0.1
        sampler.close()


def test_the_clock_is_made_steady_once_and_read_where_somebody_tells_it(device: Device) -> None:
    clocks = Clocks.of(device)
    clocks.warm()
    clocks.warm()
    reading = clocks.read()
    if reading is not None:
        assert reading.sm_mhz is None or reading.sm_mhz > 100
    gpu = gpu_of(device)
    others = gpu.others({os.getpid()}) if gpu else None
    assert clocks.contended() is any(not is_of_the_run(pid, os.getpid()) for pid in others or ())


@pytest.fixture
def refused_waits() -> Iterator[Callable[[str], None]]:
    """Sets what becomes of operations that wait for the device: ``"error"`` or ``"default"``, which comes last."""
    try:
        yield torch.cuda.set_sync_debug_mode
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn])
def test_nothing_between_samples_waits_for_the_device(
    device: Device, dtype: torch.dtype, refused_waits: Callable[[str], None]
) -> None:
    """A host that waits loses the head start that the samples queued behind it have."""
    shown = {name: torch.randn(37, 104, device=device.torch).to(dtype) for name in ("one", "other")}
    rotation = Rotation((shown["one"], 3.0), COPIES)
    outputs = Stack(TensorSpec.of(shown["one"]), COPIES)
    flipped = FlippedElements(outputs, torch.Generator(device.torch).manual_seed(1))
    for name, values in shown.items():
        rotation.show(name, (values, 3.0))
        refused_waits("error")
        for _ in range(40):
            rotation.move(range(COPIES), {0: values})
            rotation.change([0])
            rotation.rewrite(range(COPIES), {0: values})
            rotation.change([0])
            flipped.change()
        rotation.put_back([0], {0: values})
        refused_waits("default")
        assert torch.equal(as_bits(rotation.copies[0][0]), as_bits(values))
        rotation.restore()
        assert all(torch.equal(as_bits(copy[0]), as_bits(values)) for copy in rotation.copies)
