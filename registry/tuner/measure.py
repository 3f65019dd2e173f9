"""Timing one candidate: warm up, sample until the median is known well enough, give up early on the hopeless."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .protocol import Protocol
from .samplers import Sampler


@dataclass(frozen=True)
class Measurement:
    """Samples in µs in the order taken, why sampling stopped, and how a sample was taken."""

    samples: tuple[float, ...]
    stop_reason: str
    censored: bool
    how: str

    @property
    def median_us(self) -> float:
        """The figure that candidates are ranked by in the search."""
        return statistics.median(self.samples)


def measure(sampler: Sampler, protocol: Protocol, best_us: float | None = None) -> Measurement:
    """Sample under ``protocol``; ``best_us`` is what a candidate must be near to be worth more than a few samples."""
    _warm_up(sampler, protocol)
    samples: list[float] = []
    began = time.perf_counter()
    while True:
        samples.append(sampler.sample())
        elapsed_us = (time.perf_counter() - began) * 1e6
        if reason := _reason_to_stop(samples, elapsed_us, protocol, best_us):
            return Measurement(tuple(samples), reason, reason == "hopeless", sampler.how)


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """A 95% interval of the median from order statistics (no assumption about the distribution)."""
    ordered = sorted(samples)
    count = len(ordered)
    reach = 0.98 * count**0.5
    low = max(0, int(count / 2 - reach))
    high = min(count - 1, int(count / 2 + reach))
    return ordered[low], ordered[high]


def _warm_up(sampler: Sampler, protocol: Protocol) -> None:
    began = time.perf_counter()
    sampler.sample()
    while (time.perf_counter() - began) * 1e6 < protocol.warmup_us:
        sampler.sample()


def _reason_to_stop(samples: Sequence[float], elapsed_us: float, protocol: Protocol, best_us: float | None) -> str:
    count = len(samples)
    if best_us is not None and count == protocol.min_censor and min(samples) > protocol.hopeless * best_us:
        return "hopeless"
    if count >= protocol.max_samples:
        return "max_samples"
    if count >= protocol.min_samples:
        low, high = median_interval(samples)
        if high - low <= protocol.interval * statistics.median(samples):
            return "interval"
    if elapsed_us >= protocol.limit_us and count >= protocol.min_censor:
        return "limit"
    return ""
