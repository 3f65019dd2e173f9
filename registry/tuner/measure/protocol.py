"""How a time was taken: a frozen record whose every field is part of the stored protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tuning_db import REGIMES

from ...device import Device
from ...errors import InvalidArgumentError

REGIME = "cold"
"""Winners are stored per regime; ``cold`` means that a call finds its inputs in memory, not in the last-level cache."""


@dataclass(frozen=True)
class TimingProtocol:
    """The measuring method. Times are microseconds, sizes bytes.

    clock           "cuda_event" around device work, "perf_counter" around a call on the CPU
    cache_bytes     the last-level cache that must be cold
    regime          "cold" or "hot": there launches follow each other on tensors that are still in the cache
    max_copies      a working set (inputs and outputs) is made cold by rotating copies of it, at most this many; more
                    where a sample on a GPU would come to one of them twice
    flush           where these are too small to evict each other, as many launches follow each read of twice the cache,
                    and the time of the read alone is subtracted
    sample_us       launches are grouped until a sample lasts at least this long
    single_above_us a launch that lasts longer is a sample of its own, between two events
    turn_us         the longest that launches on all copies take: of a slow launch fewer copies are used, two at least;
                    what the cache holds does not matter to it
    warmup_us       work before the first sample, so that clocks have settled
    min_samples, max_samples, interval    sampling ends when the 95% interval of the median is narrower than
                    ``interval`` (relative) after ``min_samples``, or at ``max_samples``, or after ``limit_us``
    settled         or when the second half of at least twice ``min_samples`` has changed neither the median (by half
                    of ``interval``) nor the spread (by this part of it): more samples would say the same
    hopeless        a candidate whose first ``min_censor`` samples are all slower than ``hopeless`` times the best
                    so far is given up (censored)
    screen          one whose first two launches are both slower than ``screen`` times the best is given up at once
    """

    clock: str
    cache_bytes: int
    regime: str = REGIME
    max_copies: int = 16
    flush: bool = False
    sample_us: float = 100.0
    single_above_us: float = 500.0
    turn_us: float = 1_000_000.0
    warmup_us: float = 1_000.0
    min_samples: int = 6
    max_samples: int = 40
    interval: float = 0.01
    settled: float = 0.2
    limit_us: float = 200_000.0
    min_censor: int = 3
    hopeless: float = 2.0
    screen: float = 3.0
    version: int = 3

    def __post_init__(self) -> None:
        if self.regime not in REGIMES:
            raise InvalidArgumentError(f"regime {self.regime!r} is not known", hint=f"expected {' or '.join(REGIMES)}")

    @classmethod
    def of(cls, device: Device, regime: str = REGIME) -> TimingProtocol:
        """The default protocol of a device."""
        # before version 4 launches on a hot cache had one copy of their tensors
        version = 4 if regime == "hot" else 3
        if device.type == "cuda":
            return cls("cuda_event", device.l2_bytes, regime, flush=regime == "cold", version=version)
        # a server's last-level cache can be larger than what is worth rotating through for one laptop-sized op
        cache = min(device.l2_bytes, 64 * 2**20)
        return cls("perf_counter", cache, regime, sample_us=200.0, warmup_us=5_000.0, interval=0.02, version=version)

    @property
    def details(self) -> Mapping[str, Any]:
        return asdict(self)
