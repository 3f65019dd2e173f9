"""The copy floor: the time of a device copy that moves the bytes a problem must move, timed as a candidate is."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

import torch

from ...device import Device
from .protocol import TimingProtocol
from .samplers import Sampler, copies_of, has_warm_copy
from .sampling import sampler_for

_TRIALS = 5

Copy = Callable[[torch.Tensor, torch.Tensor], object]


def copy_sampler(floor_bytes: int, device: Device, protocol: TimingProtocol) -> Sampler:
    """Samples a copy of ``floor_bytes / 2`` bytes by the faster of the driver's copy and an elementwise kernel.

    Neither is always the faster: on an H200 the driver took 248 µs for 500 MiB, but 390 µs for 512 MiB, a power of two,
    for which the faster of the two took 258 µs.
    """
    half = max(4, floor_bytes // 8 * 4)
    # random data: zeros or ones toggle fewer wires than data do
    # a candidate's launches have as many, and one more to warm up
    count = copies_of(2 * half, protocol) + has_warm_copy(2 * half, protocol)
    sources = [torch.rand(half // 4, device=device.torch) for _ in range(count)]
    pairs = [(torch.empty_like(source), source) for source in sources]
    copies: tuple[Copy, Copy] = torch.Tensor.copy_, lambda target, source: torch.abs(source, out=target)
    samplers = [_sampler(copy, pairs, protocol, device) for copy in copies]
    times = [statistics.median(us for us, _ in sampler.take(_TRIALS)) for sampler in samplers]
    slower = samplers.pop(times.index(max(times)))
    slower.close()
    return samplers[0]


def _sampler(
    copy: Copy, pairs: list[tuple[torch.Tensor, torch.Tensor]], protocol: TimingProtocol, device: Device
) -> Sampler:
    launches = [partial(copy, target, source) for target, source in pairs]
    working_set = 2 * pairs[0][0].nbytes
    warm = launches.pop() if has_warm_copy(working_set, protocol) else None
    return sampler_for(launches, capturable=True, working_set=working_set, protocol=protocol, device=device, warm=warm)
