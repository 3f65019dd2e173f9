"""Timing several candidates against each other: in turns, so that what drifts meets all of them alike."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from .checks import WrongError
from .clocks import Clocks
from .samplers import Sampler

THROTTLED = "throttled"
"""How the fault begins of entrants whose rounds met a throttled device too often to tell anything."""

_REPEATS = 5
"""Rounds at most that are timed in place of those that met a throttled device."""


class ThrottledError(WrongError):
    """Nobody's fault: so many rounds met a throttled device that what is left tells nothing."""

    def __init__(self, message: str) -> None:
        super().__init__(THROTTLED, message)


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
    """One sample of each in every round, the order shuffled.

    A round that met a throttled device is dropped and timed again, five times in all at most; where fewer than half of
    the rounds are left, every entrant is out as ``THROTTLED``. One that raises is out alone; a KeyboardInterrupt goes
    on.
    """
    turns = Turns({entrant: [] for entrant in samplers}, {entrant: [] for entrant in samplers})
    shuffle = random.Random(seed)
    done = dropped = 0
    reasons: set[str] = set()
    while done < rounds and done + dropped < rounds + _REPEATS:
        order = list(turns.times)
        shuffle.shuffle(order)
        taken = {entrant: us for entrant in order if (us := _sample(turns, entrant, samplers[entrant])) is not None}
        reading = clocks.read() if clocks else None
        if reading and reading.throttled:
            dropped += 1
            reasons.update(reading.throttled)
            continue
        done += 1
        for position, (entrant, us) in enumerate(taken.items()):
            turns.times[entrant].append(us)
            turns.positions[entrant].append(position)
    for entrant in list(turns.times):
        _cover(turns, entrant, samplers[entrant])
    if 2 * done < rounds:
        why = f"the device was slowed ({', '.join(sorted(reasons))}) in {dropped} of {done + dropped} rounds"
        for entrant in list(turns.times):
            turns.drop(entrant, ThrottledError(why))
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
