"""How a time was taken: a frozen record whose every field is part of the stored protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..device import Device

REGIME = "cold"
"""Winners are stored per regime; ``cold`` means that a call finds its inputs in memory, not in the last-level cache."""


@dataclass(frozen=True)
class Protocol:
    """The measuring method. Times are microseconds, sizes bytes.

    clock           "cuda_event" around device work, "perf_counter" around a call on the CPU
    cache_bytes     the last-level cache that must be cold
    rotate_above    a working set (inputs and outputs) this large is made cold by rotating copies of it, up to
                    ``max_copies``; a smaller one by reading a buffer of twice the cache before each launch
    sample_us       launches are grouped until a sample lasts at least this long
    warmup_us       work before the first sample, so that clocks have settled
    min_samples, max_samples, interval    sampling ends when the 95% interval of the median is narrower than
                    ``interval`` (relative) after ``min_samples``, or at ``max_samples``, or after ``limit_us``
    hopeless        a candidate whose first ``min_censor`` samples are all slower than ``hopeless`` times the best
                    so far is given up (censored)
    """

    clock: str
    cache_bytes: int
    rotate_above: int
    max_copies: int = 64
    sample_us: float = 100.0
    warmup_us: float = 2_000.0
    min_samples: int = 10
    max_samples: int = 60
    interval: float = 0.01
    limit_us: float = 300_000.0
    min_censor: int = 3
    hopeless: float = 2.0
    version: int = 1

    @classmethod
    def of(cls, device: Device) -> Protocol:
        """The default protocol of a device."""
        if device.type == "cuda":
            copies = 64
            return cls("cuda_event", device.l2_bytes, 2 * device.l2_bytes // copies, max_copies=copies)
        # a server's last-level cache can be larger than what is worth rotating through for one laptop-sized op
        cache = min(device.l2_bytes, 64 * 2**20)
        return cls("perf_counter", cache, 0, max_copies=16, sample_us=200.0, warmup_us=5_000.0, interval=0.02)

    @property
    def details(self) -> Mapping[str, Any]:
        """As stored."""
        return asdict(self)
