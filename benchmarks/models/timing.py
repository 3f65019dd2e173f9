"""Times of steps in which several ways take turns."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..arguments import output_folder

ROUNDS = 7
FEWEST, MOST = 5, 128
ROUND_SECONDS = 0.2
"""How long a round lasts whose number of steps is not given: after a pause the first step waits for the host, which is
the longer, the more a step is the GPU's alone."""

Step = Callable[[], Any]
Round = Callable[[int], float]
"""So many steps, and the milliseconds of the host for each."""


def milliseconds(
    steps: Mapping[str, Step], rewinds: Mapping[str, Step], count: int | None = None
) -> dict[str, list[float]]:
    """Milliseconds of the host for a step by way, a value for each round; the ways take turns.

    rewinds  by way what is run before its round, outside of the time
    count    as in ``in_turns``
    """
    return in_turns({way: round_of(step, rewinds[way]) for way, step in steps.items()}, count)


def in_turns(rounds: Mapping[str, Round], count: int | None = None) -> dict[str, list[float]]:
    """Milliseconds for a step by way, a value for each of ``ROUNDS`` rounds; the ways take turns.

    count  steps of a round; without it as many as last ``ROUND_SECONDS``, from ``FEWEST`` to ``MOST``
    """
    times: dict[str, list[float]] = {way: [] for way in rounds}
    counts = {way: count or _fitting(one(FEWEST)) for way, one in rounds.items()}
    for turn in range(ROUNDS if rounds else 0):
        names = [*rounds][turn % len(rounds) :] + [*rounds][: turn % len(rounds)]
        for way in names:
            times[way].append(rounds[way](counts[way]))
    return times


def round_of(step: Step, rewind: Step) -> Round:
    """A round of steps, after ``rewind``, which is outside of the time."""

    def run(count: int) -> float:
        rewind()
        wait()
        began = time.perf_counter()
        for _ in range(count):
            step()
        wait()
        return (time.perf_counter() - began) / count * 1e3

    return run


def _fitting(step_ms: float) -> int:
    """The steps of a round, for a step of so many milliseconds."""
    return min(MOST, max(FEWEST, round(ROUND_SECONDS * 1e3 / step_ms)))


def ratio(times: Sequence[float], plain: Sequence[float] | None) -> float | None:
    """The median over rounds of a way's time by the plain way's; None if that has no times."""
    if not plain:
        return None
    return statistics.median(one / other for one, other in zip(times, plain, strict=True))


def wait() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Deadline:
    """Seconds that a benchmark may take from now on; None is no limit. Pieces of one kind take about as long."""

    def __init__(self, limit: float | None) -> None:
        self._limit, self._began = limit, time.perf_counter()
        self._longest: dict[str, float] = {}

    def took(self, kind: str, seconds: float) -> None:
        """Note how long a piece of work took."""
        self._longest[kind] = max(self._longest.get(kind, 0.0), seconds)

    def is_near(self, kind: str) -> bool:
        """True if a piece of work that takes as long as the longest of its kind would end after the limit."""
        ends = time.perf_counter() - self._began + self._longest.get(kind, 0.0)
        return self._limit is not None and ends > self._limit


def add_options(parser: argparse.ArgumentParser, results: str, steps: int | None) -> None:
    """Add the options that benchmarks of steps share; ``results`` names the files that ``--write`` writes."""
    fitting = "" if steps else f", without it as many as last {ROUND_SECONDS} s, from {FEWEST} to {MOST}"
    parser.add_argument("--steps", type=int, default=steps, help=f"steps in a round{fitting}")
    parser.add_argument("--time-limit", type=float, help="seconds after which nothing further begins")
    parser.add_argument("--smoke", action="store_true", help="a small model, to see that it runs")
    parser.add_argument("--write", type=output_folder, help=f"write {results}.json and {results}.txt there")
