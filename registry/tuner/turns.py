"""Timing several candidates against each other: in turns, so that what drifts meets all of them alike."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from .clocks import Clocks
from .samplers import Sampler

_REPEATS = 5
"""Rounds at most that are timed again because the device was throttled."""


@dataclass
class Turns:
    """Per entrant its µs in each round, and its place in the order of that round; or what it raised."""

    times: dict[int, list[float]] = field(default_factory=dict)
    positions: dict[int, list[int]] = field(default_factory=dict)
    faults: dict[int, BaseException] = field(default_factory=dict)

    def drop(self, entrant: int, fault: BaseException) -> None:
        """Take an entrant out, whose rounds do not pair up with the others' any more."""
        self.faults[entrant] = fault
        self.times.pop(entrant)
        self.positions.pop(entrant)


def in_turns(samplers: Mapping[int, Sampler], rounds: int, seed: int, clocks: Clocks | None = None) -> Turns:
    """One sample of each in every round, the order shuffled. A round that met a throttled device is timed again.

    An entrant that raises is out; a KeyboardInterrupt goes on.
    """
    turns = Turns({entrant: [] for entrant in samplers}, {entrant: [] for entrant in samplers})
    shuffle = random.Random(seed)
    done = repeated = 0
    while done < rounds:
        order = list(turns.times)
        shuffle.shuffle(order)
        taken = {entrant: us for entrant in order if (us := _sample(turns, entrant, samplers[entrant])) is not None}
        reading = clocks.read() if clocks else None
        if reading and reading.throttled and repeated < _REPEATS:
            repeated += 1
            continue
        done += 1
        for position, (entrant, us) in enumerate(taken.items()):
            turns.times[entrant].append(us)
            turns.positions[entrant].append(position)
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
