"""Timing several candidates against each other: one sample of each a round, so that drift meets all of them alike."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from .clocks import Clocks
from .samplers import Sampler

_Result = TypeVar("_Result")

_REPEATS = 5
"""The most rounds that replace rounds during which the device was throttled."""


@dataclass
class Interleaved:
    """Each entrant's µs in each round and its place in the order of that round, or the exception that it raised."""

    times: dict[int, list[float]]
    positions: dict[int, list[int]]
    faults: dict[int, BaseException] = field(default_factory=dict)

    def add(self, taken: Mapping[int, float]) -> None:
        """Add one round: each entrant's µs, in the order in which they were timed."""
        for position, (entrant, us) in enumerate(taken.items()):
            if entrant in self.times:
                self.times[entrant].append(us)
                self.positions[entrant].append(position)

    def drop(self, entrant: int, fault: BaseException) -> None:
        """Take out an entrant that raised: its rounds do not pair up with those of the others any more."""
        self.faults[entrant] = fault
        self.times.pop(entrant)
        self.positions.pop(entrant)


def interleave(
    samplers: Mapping[int, Sampler],
    rounds: int,
    seed: int,
    clocks: Clocks | None = None,
    go_on: Callable[[], None] = lambda: None,
) -> Interleaved:
    """One sample of each sampler in every round, the order shuffled; by the samplers' keys.

    Rounds during which the device was throttled are timed again, five at most, and left out if the other rounds are at
    least half of those wanted; else all rounds count. An entrant that raises is out; a KeyboardInterrupt goes on.
    ``go_on`` is called before each sample. After some of its samples an entrant is compared on known and new inputs.
    """
    timed = Interleaved({entrant: [] for entrant in samplers}, {entrant: [] for entrant in samplers})
    shuffle = random.Random(seed)
    # no entrant knows from which round on it is compared on known and on new inputs
    compared = {entrant: secrets.randbelow(rounds) for entrant in samplers}
    steady: list[dict[int, float]] = []
    throttled: list[dict[int, float]] = []
    while len(steady) < rounds and len(steady) + len(throttled) < rounds + _REPEATS:
        order = list(timed.times)
        shuffle.shuffle(order)
        samples: dict[int, float | None] = {}
        for entrant in order:
            go_on()
            samples[entrant] = _guarded(timed, entrant, samplers[entrant].sample)
            if len(steady) + len(throttled) >= compared[entrant] and entrant in timed.times:
                _guarded(timed, entrant, partial(samplers[entrant].between.compare, samplers[entrant]))
        taken = {entrant: us for entrant, us in samples.items() if us is not None}
        reading = clocks.read() if clocks else None
        (throttled if reading and reading.throttled else steady).append(taken)
    for taken in steady if 2 * len(steady) >= rounds else steady + throttled:
        timed.add(taken)
    for entrant in list(timed.times):
        go_on()
        _guarded(timed, entrant, partial(_end, samplers[entrant], go_on))
    return timed


def _end(sampler: Sampler, go_on: Callable[[], None]) -> None:
    """Compare until enough is compared, and launch on the copies that no sample has reached."""
    while not sampler.between.compare(sampler):
        go_on()
    sampler.cover()


def _guarded(timed: Interleaved, entrant: int, work: Callable[[], _Result]) -> _Result | None:
    """The result of an entrant's work; None, and the entrant is out, where the work raises."""
    try:
        return work()
    except KeyboardInterrupt:
        raise
    except BaseException as fault:  # a fault of one entrant, SystemExit too, must not end the others
        timed.drop(entrant, fault)
        return None
