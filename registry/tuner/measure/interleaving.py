"""Timing several candidates against each other: in turns, so that what drifts meets all of them alike."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from .clocks import Clocks
from .samplers import Sampler

_REPEATS = 5
"""Rounds at most that are timed in place of others, which met a throttled device."""


@dataclass
class Turns:
    """Per entrant its µs in each round, and its place in the order of that round; or what it raised."""

    times: dict[int, list[float]] = field(default_factory=dict)
    positions: dict[int, list[int]] = field(default_factory=dict)
    faults: dict[int, BaseException] = field(default_factory=dict)

    def add(self, taken: Mapping[int, float]) -> None:
        """One round, in the order in which it was timed."""
        for position, (entrant, us) in enumerate(taken.items()):
            if entrant in self.times:
                self.times[entrant].append(us)
                self.positions[entrant].append(position)

    def drop(self, entrant: int, fault: BaseException) -> None:
        """Take an entrant out, whose rounds do not pair up with the others' any more."""
        self.faults[entrant] = fault
        self.times.pop(entrant)
        self.positions.pop(entrant)


def in_turns(samplers: Mapping[int, Sampler], rounds: int, seed: int, clocks: Clocks | None = None) -> Turns:
    """One sample of each in every round, the order shuffled.

    Rounds that met a throttled device are timed again, five at most, and left out if half of the rounds are there
    without them; else it is how the device runs, and all count. An entrant that raises is out; a KeyboardInterrupt goes
    on.
    """
    turns = Turns({entrant: [] for entrant in samplers}, {entrant: [] for entrant in samplers})
    shuffle = random.Random(seed)
    steady: list[dict[int, float]] = []
    throttled: list[dict[int, float]] = []
    while len(steady) < rounds and len(steady) + len(throttled) < rounds + _REPEATS:
        order = list(turns.times)
        shuffle.shuffle(order)
        taken = {entrant: us for entrant in order if (us := _sample(turns, entrant, samplers[entrant])) is not None}
        reading = clocks.read() if clocks else None
        (throttled if reading and reading.throttled else steady).append(taken)
    for taken in steady if 2 * len(steady) >= rounds else steady + throttled:
        turns.add(taken)
    for entrant in list(turns.times):
        _cover(turns, entrant, samplers[entrant])
    return turns


def _sample(turns: Turns, entrant: int, sampler: Sampler) -> float | None:
    try:
        return sampler.sample()
    except KeyboardInterrupt:
        raise
    except BaseException as fault:  # one entrant's fault, SystemExit too, is not the others'
        turns.drop(entrant, fault)
        return None


def _cover(turns: Turns, entrant: int, sampler: Sampler) -> None:
    try:
        sampler.cover()
    except KeyboardInterrupt:
        raise
    except BaseException as fault:  # as above
        turns.drop(entrant, fault)
