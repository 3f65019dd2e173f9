"""Decisions about a problem that is noisier than its batch; finals_simulation prints their table.

Each process shifts the time of each entrant, the incumbent and its copy included, by a normal share of so many per
cent, while 23 other problems (or, of a problem alone, none) show the usual noise. No challenger is better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from registry.tuner.decide.judge import ALPHA, INCUMBENT_COPY, blocks_of_each, judge, observed, time_ratio
from registry.tuner.decide.noise import Noise

from .finals_noise import Measured
from .finals_world import DEFAULT, INCUMBENT, Blocks, World, finals

BESIDE = 23
"""Problems of the batch that are not noisy."""
_BATCHES = 20
"""The number of different batches, which decisions take in turn."""
SHIFTS = (0.003, 0.01, 0.02, 0.05)
"""Standard deviations of a process's shift of one entrant, relative."""
_ELSEWHERE = 0.0055
"""Standard deviation of a log ratio by another method of timing (registry.tuner.decide.judge)."""


def noisy_finals(world: World, us: float, names: Sequence[str], count: int, shift: float) -> Blocks:
    """Blocks of an incumbent and equally fast challengers; each block shifts the time of each entrant."""
    everybody = [INCUMBENT, INCUMBENT_COPY, *names]
    return [
        {name: (us * np.exp(world.residuals(us) + world.draw.normal(0.0, shift))).tolist() for name in everybody}
        for _ in range(count)
    ]


@dataclass(frozen=True)
class Noisy:
    """Parts of the decisions about a noisy problem: false wins, and intervals that hold the truth."""

    false_wins: float
    holds: float
    holds_elsewhere: float


def simulate_noisy(world: World, beside: int, entering: int, shift: float, decisions: int) -> Noisy:
    """Decide a problem with that shift together with ``beside`` usual ones, ``decisions`` times."""
    names = [DEFAULT, *(f"other {place}" for place in range(entering))][:entering]
    batches = [_usual(world, beside, names) for _ in range(_BATCHES if beside else 1)]
    wrong, held, held_elsewhere = 0, list[bool](), list[bool]()
    for number in range(decisions):
        durations, usual = batches[number % len(batches)]
        us = float(world.draw.choice([one.us for one in world.sources]))
        blocks = noisy_finals(world, us, names, blocks_of_each([us, *durations], Noise())[0], shift)
        noise = usual + observed(INCUMBENT, names, blocks)
        wrong += judge(INCUMBENT, names, blocks, noise).winner != INCUMBENT
        alpha = ALPHA / entering
        for name in names:
            low, high = _interval(name, blocks, alpha, noise, elsewhere=False)
            held.append(low <= 1 <= high)
            low, high = _interval(name, blocks, alpha, noise, elsewhere=True)
            again = world.draw.normal(0.0, math.hypot(shift * math.sqrt(2), _ELSEWHERE))
            held_elsewhere.append(low <= math.exp(again) <= high)
    return Noisy(wrong / decisions, float(np.mean(held)), float(np.mean(held_elsewhere)))


def _usual(world: World, problems: int, names: Sequence[str]) -> tuple[list[float], Noise]:
    """The durations of ``problems`` problems, and the noise that their finals show."""
    durations: list[float] = world.draw.choice([one.us for one in world.sources], problems).tolist()
    truth = dict.fromkeys(names, 1.0)
    counts = blocks_of_each(durations, Noise())
    held = [finals(world, us, "real", truth, count) for us, count in zip(durations, counts, strict=True)]
    return durations, sum((observed(INCUMBENT, challengers, blocks) for challengers, blocks in held), Noise())


def _interval(name: str, blocks: Blocks, alpha: float, noise: Noise, *, elsewhere: bool) -> tuple[float, float]:
    ratio = time_ratio(name, INCUMBENT, blocks, alpha, noise, elsewhere=elsewhere)
    return ratio.low, ratio.high


def table_by_shift(measured: Sequence[Measured], seed: int, decisions: int) -> list[str]:
    """The figures of decisions about problems that are noisier than their batch, in Markdown."""
    lines = [
        f"A problem noisier than its batch; {decisions} decisions a row",
        "",
        "| process shift | decided | entering | false wins | interval holds | for a new measurement |",
        "| ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for shift in SHIFTS:
        for beside in (BESIDE, 0):
            for entering in (1, 2, 3):
                found = simulate_noisy(World(measured, seed), beside, entering, shift, decisions)
                where = f"beside {beside} usual ones" if beside else "alone"
                rates = (found.false_wins, found.holds, found.holds_elsewhere)
                figures = " | ".join(f"{100 * rate:.1f}%" for rate in rates)
                lines.append(f"| {100 * shift:g}% | {where} | {entering} | {figures} |")
    return lines
