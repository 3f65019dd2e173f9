"""Chooses a candidate's sampler, after a first look at its duration."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ...device import Device
from .capture import CaptureError, try_capture
from .device_samplers import (
    BacklogSampler,
    DeviceClock,
    Flushes,
    GraphSampler,
    HostTime,
    SingleSampler,
    flushes_of,
)
from .protocol import TimingProtocol
from .samplers import ClockSampler, Enqueue, Sampler, ScreenedSampler, copies_of, needs_flush, no_collection

_MOST_LAUNCHES = 64
"""Most launches of a sample, unless there are more copies. Where the copies are cold, 64 always last long enough."""
_EVENTS_US = 3.0
"""µs that two events around a short launch add to its time."""
_FIRST_LAUNCH_US = 10.0
"""µs by which a first launch may take longer than later ones: its code and page tables are cold too."""
_FIRST_CALL_US = 5.0
_FIRST_HEAD_START_US = 100.0
_LOOKS = 2
_READS = 2
"""Reads of a flush: launches on as many copies follow each of them."""
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
    warm: Enqueue | None = None,
    once: bool = False,
) -> Sampler:
    """The sampler that the protocol asks for. ``launches``: one per rotating copy of a ``working_set`` of bytes.

    ``best_us``: the best time so far; a candidate far from it is not sampled (it gets a ScreenedSampler). ``warm``: a
    launch on a copy of its own, on a CPU. ``once``: on a GPU no sample launches twice on a copy, however few there are.
    """
    on_gpu = device.type == "cuda"
    look = _look(launches) if on_gpu else _look_by_clock(launches, protocol)
    turn = Turn(copies_in_time(len(launches), look.estimate_us, protocol))
    if on_gpu:
        turn = turn_of(len(launches), look.estimate_us, working_set, protocol, once=once)
    used = launches[: turn.copies]
    sampler: Sampler
    if look.is_hopeless(best_us, protocol, _FIRST_LAUNCH_US if on_gpu else _FIRST_CALL_US):
        used = used[: copies_of(working_set, protocol)] if on_gpu else used
        sampler = ScreenedSampler(used, look.times)
    elif on_gpu:
        flushes = flushes_of(2 * protocol.cache_bytes, device) if turn.flushed else None
        sampler = _on_gpu(look, used, turn.times, flushes, protocol, capturable, device)
    else:
        sampler = ClockSampler(used, protocol, statistics.median(look.times), len(look.times), warm)
    sampler.copies, sampler.launch_us = len(used), look.estimate_us
    return sampler


def _on_gpu(
    look: Look,
    launches: Sequence[Enqueue],
    times: int,
    flushes: Flushes | None,
    protocol: TimingProtocol,
    capturable: bool,
    device: Device,
) -> Sampler:
    if look.estimate_us >= protocol.single_above_us:
        return SingleSampler(launches, look.host_us, len(look.times))
    turn = list(launches) * times
    if capturable:
        try:
            try_capture(launches[0], device.torch)
            return GraphSampler(turn, device, flushes)
        except CaptureError as fault:
            return BacklogSampler(turn, look.host_us, flushes, refused=str(fault))
    return BacklogSampler(turn, look.host_us, flushes)


@dataclass(frozen=True)
class Turn:
    """A sample's launches: on how many copies, how many ``times`` each, and whether they come after a flush."""

    copies: int
    times: int = 1
    flushed: bool = False


def turn_of(
    available: int, launch_us: float, working_set: int, protocol: TimingProtocol, *, once: bool = False
) -> Turn:
    """The launches of a sample on a GPU, given how many copies are ``available``.

    No copy comes twice where enough are available. In a launch that finds its own inputs and output as an earlier one
    of the sample left them, a candidate could do nothing: a kernel knows by a clock of the device, or by counting,
    that nobody has written to them. All outputs would be right, and the time half of what it is, or less.

    ``once``: no copy comes twice in any case. The time of the events around few short launches is then subtracted with
    that of a flush.
    """
    flushed, cold = needs_flush(working_set, protocol), min(available, copies_of(working_set, protocol))
    wanted = cold * (_READS if flushed else rounds(cold, launch_us, protocol))
    copies = copies_in_time(min(available, wanted), launch_us, protocol)
    if once:
        is_short = copies * launch_us < protocol.sample_us / 2
        return Turn(copies, 1, flushed or (protocol.flush and is_short))
    if flushed:
        return Turn(copies, 1 if copies == wanted else _READS, flushed)
    return Turn(copies, rounds(copies, launch_us, protocol))


def copies_in_time(copies: int, launch_us: float, protocol: TimingProtocol) -> int:
    """The number of copies to launch on: as many as fit into ``turn_us``, and at least two."""
    return min(copies, max(2, int(protocol.turn_us / launch_us)))


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
