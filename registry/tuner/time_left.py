"""An estimate of the time until a run is over, and when its searches have to end for a time limit to hold."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from .decide.judge import BLOCKS, MOST_BLOCKS, ROUNDS
from .search.findings import Findings
from .search.state import SearchState

_SETUP_S, _START_S = 0.3, 2.0
"""Seconds for a problem's set-up in a block of finals, at least, and for the start of a block's process."""
_SAMPLE_US = 200.0
"""Microseconds of a sample of a short launch."""
_ENTRANTS = 5
_SAY_EVERY_S = 5.0
_NEARLY = 0.95
"""The most that an active search counts towards the searches done: its number of trials is only an upper bound."""


class TimeLeft:
    """The time left of a run over ``problems`` problems, which may take ``limit_s`` seconds (None: no limit).

    ``devices``: the number of devices that hold the finals. ``search_s``: the most seconds of a device that the search
    of a problem takes.
    """

    def __init__(self, problems: int, limit_s: float | None, devices: int = 1, search_s: float = math.inf) -> None:
        self._began = time.monotonic()
        self._problems = problems
        self._limit_s = limit_s
        self._devices = devices
        self._search_limit_s = search_s / devices
        self._searched = 0
        self._search_s = 0.0
        self._batch_began = self._began
        self._finals_s = 0.0
        self._decided = 0
        self._say_at = self._began
        self.timed_out = False

    def batch_begins(self) -> None:
        """Record that the searches of a batch begin."""
        self._batch_began = time.monotonic()

    def finals_begin(self, searched: int) -> None:
        """Record that ``searched`` problems of the batch were searched and that their finals begin."""
        now = time.monotonic()
        self._searched += searched
        self._search_s += now - self._batch_began
        self._batch_began = now

    def finals_end(self, decided: int) -> None:
        """Record that the finals of the batch are over and ``decided`` problems were decided."""
        self._decided += decided
        self._finals_s += time.monotonic() - self._batch_began

    def out_of_time(self, over: Sequence[SearchState], active: Sequence[SearchState]) -> bool:
        """Whether the searches must end now, so that the finals of what was searched fit into the time limit.

        Finals for which time is short end after three blocks.
        """
        if self._limit_s is not None and not self.timed_out:
            needed = finals_seconds([search.findings for search in (*over, *active)], self._devices, BLOCKS)
            self.timed_out = time.monotonic() - self._began + needed >= self._limit_s
        return self.timed_out

    def in_search(self, over: Sequence[SearchState], active: Sequence[SearchState]) -> float | None:
        """An estimate of the seconds left, every 5 seconds; None in between, and until 5 seconds after the first trial.

        The time before the first trial, in which processes start, is not taken for that of other searches.
        """
        now = time.monotonic()
        part = sum(min(_NEARLY, search.done / max(1, search.candidates)) for search in active)
        finished = self._searched + len(over)
        done = finished + part
        if not done:
            self._batch_began, self._say_at = now, now + _SAY_EVERY_S
        if now < self._say_at:
            return None
        self._say_at = now + _SAY_EVERY_S
        pace = (self._search_s + now - self._batch_began) / done
        if not finished:
            # a few of a search's trials tell little of the others
            pace = min(pace, self._search_limit_s)
        return self._limited(
            (self._problems - done) * pace + self._finals_of(self._problems - self._decided, over, active)
        )

    def in_finals(self, number: int, blocks: int, searched: Sequence[Findings]) -> float:
        """Seconds left when block ``number`` of a batch's finals begins."""
        taken = time.monotonic() - self._batch_began
        batch = taken / (number - 1) * (blocks - number + 1) if number > 1 else finals_seconds(searched, self._devices)
        others = self._problems - self._searched
        pace = self._search_s / max(1, self._searched)
        return self._limited(batch + others * (pace + (taken + batch) / max(1, len(searched))))

    def has_room_for_two(self, over: int) -> bool:
        """Whether two more blocks of a batch's finals fit into the time limit, of which ``over``, one at least, are."""
        now = time.monotonic()
        pace = (now - self._batch_began) / over
        return self._limit_s is None or now - self._began + 2 * pace <= self._limit_s

    def _finals_of(self, problems: int, over: Sequence[SearchState], active: Sequence[SearchState]) -> float:
        if self._decided:
            return problems * self._finals_s / self._decided
        known = [search.findings for search in (*over, *active)]
        return problems * finals_seconds(known, self._devices) / max(1, len(known))

    def _limited(self, seconds: float) -> float:
        if self._limit_s is None:
            return seconds
        return max(0.0, min(seconds, self._limit_s - (time.monotonic() - self._began)))


def finals_seconds(searched: Sequence[Findings], devices: int = 1, blocks: int = MOST_BLOCKS) -> float:
    """Roughly the seconds that so many blocks of finals of these problems take on ``devices`` devices."""
    right = [(findings, us) for findings in searched if (us := findings.best_us) is not None]
    if not right:
        return 0.0
    rounds_s = sum(
        min(findings.seconds, blocks * ROUNDS * _ENTRANTS * max(us, _SAMPLE_US) / 1e6) for findings, us in right
    )
    looks_s = sum(
        max(blocks * _SETUP_S, findings.setup_seconds(_ENTRANTS, blocks)) + blocks * _ENTRANTS * us / 1e6
        for findings, us in right
    )
    return (rounds_s + looks_s) / min(devices, len(right)) + blocks * _START_S
