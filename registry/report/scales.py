"""Logarithmic axes: the place of a value, and the values that get a tick."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .formats import dimension, short_us

_LEAST, _MOST = 1e-6, 1e15


@dataclass(frozen=True)
class Tick:
    """A tick's place in the chart's units, and its label; an empty label is a grid line alone."""

    at: float
    label: str


@dataclass(frozen=True)
class LogScale:
    """Maps ``low`` to ``start`` and ``high`` to ``end``, logarithmically; values beyond are clipped."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The place of ``value`` in the chart's units."""
        inside = min(max(value, self.low), self.high)
        share = (math.log(inside) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return round(self.start + share * (self.end - self.start), 1)

    @classmethod
    def around(cls, values: Iterable[float], start: float, end: float, margin: float = 1.15) -> LogScale:
        """A scale of all positive values, clipped to a clock's range, with a margin (a factor) on either side."""
        inside = [min(max(value, _LEAST), _MOST) for value in values if value > 0] or [1.0]
        low, high = min(inside) / margin, max(inside) * margin
        return cls(low, high if high > low else 2 * low, start, end)

    def ticks(self, label: Callable[[float], str] = short_us) -> list[Tick]:
        """Ticks at 1, 2 and 5 of each decade; on a long axis only decades are labelled. ``label``: µs by default."""
        decades = math.log10(self.high / self.low)
        labelled = {1: True, 2: decades < 3.2, 5: decades < 3.2}
        exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        values = [(10.0**exponent * digit, digit) for exponent in exponents for digit in (1, 2, 5)]
        inside = [(value, digit) for value, digit in values if self.low <= value <= self.high]
        return [Tick(self(value), label(value) if labelled[digit] else "") for value, digit in inside]

    def value_ticks(self, values: Iterable[float], character: float) -> list[Tick]:
        """A tick at each value, unlabelled where it would touch the previous one; ``character`` is a letter's width."""
        ticks: list[Tick] = []
        taken = -math.inf
        for value in sorted(set(values)):
            at, label = self(value), dimension(value)
            half = len(label) * character / 2
            fits = at - half >= taken
            ticks.append(Tick(at, label if fits else ""))
            taken = at + half + character * 0.7 if fits else taken
        return ticks
