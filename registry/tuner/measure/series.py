"""Timing one candidate: warm up, sample until the median is known well enough, give up early on the hopeless."""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any

from ..jobs import Outcome
from .clocks import ClockReading, Clocks
from .protocol import TimingProtocol
from .samplers import Sample, Sampler, ScreenedSampler

HOPELESS = "hopeless"
SCREENED = "screened"

PROMISING = 1.2
"""The most that the time of a promising candidate may be, over the best so far: no slower one enters the finals.

Finalists are within 1.1 of the fastest, and a search's time is more than 14% off for one candidate in a hundred."""

_COMPARED_FROM = 4
"""Known and new inputs are compared from a random batch of samples below this number on, or at the end."""
_SERIES = 3
"""The most series of samples: a series after which the device is throttled is dropped and taken again."""


def measure(
    sampler: Sampler,
    protocol: TimingProtocol,
    best_us: float | None = None,
    clocks: Clocks | None = None,
    go_on: Callable[[], None] = lambda: None,
) -> Outcome:
    """Sample under ``protocol``; a candidate far from ``best_us`` gets only a few samples.

    ``go_on`` is called between batches of samples.

    The outcome's ``samples`` are µs in the order taken. Its ``details``: ``how`` samples were taken, ``clocks`` after
    them, the numbers ``dropped`` and ``spoiled``, whether the device was ``contended``.

    A series after which the device is throttled is dropped and taken again, twice at most and while time lasts. The
    last is kept as it is, since there is nothing better: ``clocks`` among the details then says ``throttled``.
    """
    details: dict[str, Any] = {"capture_refused": sampler.refused} if sampler.refused else {}
    if isinstance(sampler, ScreenedSampler):
        sampler.cover()
        return _outcome(sampler.samples, SCREENED, details | {"how": sampler.how})
    began = perf_counter_ns()
    sampler.warm_up(protocol.warmup_us)
    dropped = 0
    for number in range(_SERIES):
        series = Series(protocol, best_us, began)
        reason = series.run(sampler, go_on)
        reading = clocks.read() if clocks else None
        if not (reading and reading.throttled) or reason == "limit" or number == _SERIES - 1:
            break
        dropped += len(series.samples)
    sampler.cover()
    details |= {"how": sampler.how, **_disturbances(series, reading, dropped, clocks)}
    return _outcome(series.samples, reason, details)


def _outcome(samples: Sequence[float], reason: str, details: Mapping[str, Any]) -> Outcome:
    median_us, censored = statistics.median(samples), reason in {SCREENED, HOPELESS}
    return Outcome("ok", "", tuple(samples), median_us, censored, reason, details=details)


def _disturbances(series: Series, reading: ClockReading | None, dropped: int, clocks: Clocks | None) -> dict[str, Any]:
    """Details of the disturbances that occurred; no entry for others, since details are stored with every trial."""
    found: dict[str, Any] = {"clocks": reading.details} if reading else {}
    found |= {"dropped": dropped} if dropped else {}
    found |= {"spoiled": series.spoiled} if series.spoiled else {}
    return found | ({"contended": True} if clocks and clocks.contended() else {})


class Series:
    """Takes samples until there is a reason to stop. Unclean samples are left out, unless most samples are unclean."""

    def __init__(self, protocol: TimingProtocol, best_us: float | None, began_ns: int) -> None:
        self._protocol = protocol
        self._best_us = best_us
        self._began_ns = began_ns
        self._taken: list[Sample] = []
        self._sample_us = 0.0

    @property
    def samples(self) -> list[float]:
        """The samples that count, in µs."""
        clean = [us for us, clean in self._taken if clean]
        hardly = len(self._taken) >= 2 * self._protocol.min_samples and 2 * len(clean) < len(self._taken)
        out_of_time = self._elapsed_us() >= self._protocol.limit_us and len(clean) < self._protocol.min_censor
        return [us for us, _ in self._taken] if hardly or out_of_time else clean

    @property
    def spoiled(self) -> int:
        """Samples taken that were not clean, whether or not they count."""
        return sum(not clean for _, clean in self._taken)

    def run(self, sampler: Sampler, go_on: Callable[[], None]) -> str:
        """Take samples in growing batches; returns the reason to stop."""
        self._sample_us = sampler.launch_us
        # no candidate knows from which batch on it is compared
        batches, first = 0, secrets.randbelow(_COMPARED_FROM)
        while True:
            go_on()
            before = perf_counter_ns()
            batch = sampler.take(self._batch())
            self._taken += batch
            self._sample_us = (perf_counter_ns() - before) / 1e3 / len(batch)
            samples, elapsed_us = self.samples, self._elapsed_us()
            reason = reason_to_stop(samples, elapsed_us, self._protocol, self._best_us)
            batches += 1
            while (reason or batches > first) and self._may_win(samples):
                if self._compare(sampler, go_on) or not reason:
                    break
            if reason:
                return reason

    def _may_win(self, samples: Sequence[float]) -> bool:
        enough = len(samples) >= self._protocol.min_censor
        return enough and (self._best_us is None or min(samples) <= PROMISING * self._best_us)

    def _compare(self, sampler: Sampler, go_on: Callable[[], None]) -> bool:
        """Compare samples on known and on new inputs, in time that counts for no limit; True if enough were."""
        before = perf_counter_ns()
        go_on()
        enough = sampler.between.compare(sampler)
        self._began_ns += perf_counter_ns() - before
        return enough

    def _batch(self) -> int:
        """The number of samples until the next decision, at most as many as fit before the limit."""
        protocol, count = self._protocol, len(self.samples)
        goals = [goal - count for goal in (protocol.min_censor, protocol.min_samples) if goal > count]
        wanted = goals[0] if goals else min(max(2, count // 2), protocol.max_samples - count)
        left_us = protocol.limit_us - self._elapsed_us()
        affordable = int(left_us / self._sample_us) if self._sample_us else wanted
        return max(1, min(wanted, affordable))

    def _elapsed_us(self) -> float:
        return (perf_counter_ns() - self._began_ns) / 1e3


def reason_to_stop(samples: Sequence[float], elapsed_us: float, protocol: TimingProtocol, best_us: float | None) -> str:
    """``hopeless``, ``max_samples``, ``interval``, ``settled`` or ``limit``; "" to go on."""
    count = len(samples)
    if is_hopeless(samples, protocol, best_us):
        return HOPELESS
    if count >= protocol.max_samples:
        return "max_samples"
    if count >= protocol.min_samples:
        low, high = median_interval(samples)
        if high - low <= protocol.interval * statistics.median(samples):
            return "interval"
        if count >= 2 * protocol.min_samples and has_settled(samples, protocol):
            return "settled"
    if elapsed_us >= protocol.limit_us and count >= protocol.min_censor:
        return "limit"
    return ""


def is_hopeless(samples: Sequence[float], protocol: TimingProtocol, best_us: float | None) -> bool:
    """Whether the first samples are all so much slower than the best that more of them would be wasted."""
    early = protocol.min_censor <= len(samples) < protocol.min_samples
    return best_us is not None and early and min(samples) > protocol.hopeless * best_us


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """A 95% interval of the median from order statistics (no assumption about the distribution)."""
    ordered = sorted(samples)
    count = len(ordered)
    reach = 0.98 * count**0.5
    low = max(0, int(count / 2 - reach))
    high = min(count - 1, int(count / 2 + reach))
    return ordered[low], ordered[high]


def has_settled(samples: Sequence[float], protocol: TimingProtocol) -> bool:
    """Whether the second half of the samples has changed neither the median nor the noise."""
    half, half_noise = _median_and_noise(samples[: len(samples) // 2])
    whole, noise = _median_and_noise(samples)
    return abs(whole - half) <= protocol.interval / 2 * whole and abs(noise - half_noise) <= protocol.settled * noise


def _median_and_noise(samples: Sequence[float]) -> tuple[float, float]:
    median = statistics.median(samples)
    return median, statistics.median(abs(sample - median) for sample in samples)
