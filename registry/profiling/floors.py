"""The least time of a problem on a device: a copy of its bytes, measured, or its FLOP at the device's peak."""

from __future__ import annotations

import statistics

import torch

from ..contract import Op
from ..device import Device
from ..problem import Problem
from ..tuner.measure.copy_floor import copy_sampler
from ..tuner.measure.protocol import TimingProtocol
from ..tuner.measure.roofline import Peaks

_SAMPLES = 10
_MOST_BYTES = 4 << 30
"""Copies of more bytes are not made: their time is that of so many, scaled."""


class Floors:
    """Floors on one device. A copy of the bytes that a problem must move is timed as the tuner times one, once a size.

    FLOP count where the device's peak for the problem's dtype is known: of 8 and 16 bit types on GPUs.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._protocol = TimingProtocol.of(device)
        self._peaks = Peaks.of(device)
        self._copies: dict[int, float | None] = {}

    def us(self, op: Op, problem: Problem) -> float | None:
        """The floor in µs; None if the device has no room for the copy."""
        floor = op.floor(problem)
        size = max(1, min(floor.bytes, _MOST_BYTES))
        if size not in self._copies:
            self._copies[size] = self._copied(size)
        copied = self._copies[size]
        if copied is None:
            return None
        flop_per_us = self._flop_per_us(problem)
        return max(copied * max(1.0, floor.bytes / size), floor.flop / flop_per_us if flop_per_us else 0.0)

    def _flop_per_us(self, problem: Problem) -> float:
        width = problem.torch_dtype.itemsize
        # the peaks are those of one byte; what is wider than a half does not run on tensor cores
        return self._peaks.flop_per_us / width if width <= 2 else 0.0

    def _copied(self, size: int) -> float | None:
        try:
            sampler = copy_sampler(size, self._device, self._protocol)
        except (torch.OutOfMemoryError, MemoryError):
            return None
        try:
            return statistics.median(us for us, _ in sampler.take(_SAMPLES))
        finally:
            sampler.close()
