"""Chooses a candidate's sampler, after a first look at its duration."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ...device import Device
from .capture import CaptureError, try_capture
from .device_samplers import BacklogSampler, DeviceClock, GraphSampler, HostTime, SingleSampler, flushes_of
from .protocol import TimingProtocol
from .samplers import ClockSampler, Enqueue, Sampler, ScreenedSampler, needs_flush, no_collection

_MOST_LAUNCHES = 64
"""Most launches of a sample, unless there are more copies. Where the copies are cold, 64 always last long enough."""
_EVENTS_US = 3.0
"""µs that two events around a short launch add to its time."""
_FIRST_LAUNCH_US = 10.0
"""µs by which a first launch may take longer than later ones: its code and page tables are cold too."""
_FIRST_CALL_US = 5.0
_FIRST_HEAD_START_US = 100.0
_LOOKS = 2
_CALLS = 3


@dataclass(frozen=True)
class Look:
    """The first launches: µs each, whether they can be believed, and the host's µs for one."""

    times: tuple[float, ...]
    clean: bool
    host_us: float

    @property
    def estimate_us(self) -> float:
        """The µs of a launch without the events around it."""
        us = min(self.times)
        return max(us - _EVENTS_US, us / 2, 0.1)

    def is_hopeless(self, best_us: float | None, protocol: TimingProtocol, allowance_us: float) -> bool:
        """Whether even the fastest launch is so far from the best that samples of the candidate would be wasted."""
        if best_us is None or not self.clean:
            return False
        return min(self.times) - allowance_us > protocol.screen * best_us


def sampler_for(
    launches: Sequence[Enqueue],
    *,
    capturable: bool,
    working_set: int,
    protocol: TimingProtocol,
    device: Device,
    best_us: float | None = None,
) -> Sampler:
    """The sampler that the protocol asks for. ``launches``: one per rotating copy of a ``working_set`` of bytes.

    ``best_us``: the best time so far; a candidate far from it is not sampled (it gets a ScreenedSampler).
    """
    look = _look(launches) if device.type == "cuda" else _look_by_clock(launches, protocol)
    used = launches[: copies_in_time(len(launches), look.estimate_us, protocol)]
    sampler = _sampler_after(look, used, capturable, working_set, protocol, device, best_us)
    sampler.copies, sampler.launch_us = len(used), look.estimate_us
    return sampler


def copies_in_time(copies: int, launch_us: float, protocol: TimingProtocol) -> int:
    """The number of copies to launch on: as many as fit into ``turn_us``, and at least two."""
    return min(copies, max(2, int(protocol.turn_us / launch_us)))


def _sampler_after(
    look: Look,
    launches: Sequence[Enqueue],
    capturable: bool,
    working_set: int,
    protocol: TimingProtocol,
    device: Device,
    best_us: float | None,
) -> Sampler:
    on_gpu = device.type == "cuda"
    if look.is_hopeless(best_us, protocol, _FIRST_LAUNCH_US if on_gpu else _FIRST_CALL_US):
        return ScreenedSampler(launches, look.times)
    if not on_gpu:
        return ClockSampler(launches, protocol, statistics.median(look.times), len(look.times))
    if look.estimate_us >= protocol.single_above_us:
        return SingleSampler(launches, look.host_us, len(look.times))
    flushes = flushes_of(2 * protocol.cache_bytes, device) if needs_flush(working_set, protocol) else None
    turn = list(launches) * (1 if flushes else rounds(len(launches), look.estimate_us, protocol))
    if capturable:
        try:
            try_capture(launches[0], device.torch)
            return GraphSampler(turn, device, flushes)
        except CaptureError as fault:
            return BacklogSampler(turn, look.host_us, flushes, refused=str(fault))
    return BacklogSampler(turn, look.host_us, flushes)


def rounds(copies: int, launch_us: float, protocol: TimingProtocol) -> int:
    """Rounds over the copies that last at least ``sample_us``, as far as 64 launches do."""
    wanted = math.ceil(protocol.sample_us / (launch_us * copies))
    return max(1, min(wanted, _MOST_LAUNCHES // copies))


def _look_by_clock(launches: Sequence[Enqueue], protocol: TimingProtocol) -> Look:
    """Three launches; one alone where that takes longer than all samples of a candidate should."""
    times: list[float] = []
    with no_collection():
        while len(times) < _CALLS and sum(times) < protocol.limit_us:
            call = HostTime(launches[len(times) % len(launches)])
            call()
            times.append(call.us)
    return Look(tuple(times), True, 0.0)


def _look(launches: Sequence[Enqueue]) -> Look:
    clock = DeviceClock(_FIRST_HEAD_START_US)
    works = [HostTime(launches[place % len(launches)]) for place in range(_LOOKS)]
    taken = clock.time(works)
    if not all(clean for _, clean in taken):
        taken = clock.time(works)
    host_us = min(work.us for work in works)
    return Look(tuple(us for us, _ in taken), all(clean for _, clean in taken), host_us)
