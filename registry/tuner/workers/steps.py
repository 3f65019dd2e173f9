"""The steps of a job: told as they begin, and how long each took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from ..jobs import Outcome

Announce = Callable[[str], None]
"""Tells the run which step begins, so that its deadline starts then."""

_AGAIN_S = 1.0


class Steps:
    """Announces steps and adds up their seconds, so that a run can say where the device's time went."""

    def __init__(self, announce: Announce) -> None:
        self._announce = announce
        self._seconds: dict[str, float] = {}
        self._step = ""
        self._began = self._announced = time.perf_counter()

    def __call__(self, step: str) -> None:
        self._account()
        self._step = step
        self._announced = self._began
        self._announce(step)

    def go_on(self) -> None:
        """Announce the present step once more, so that its limit holds for each sample and not for all together.

        At most once a second: a message for each sample would be read while the next one is taken.
        """
        now = time.perf_counter()
        if now - self._announced > _AGAIN_S:
            self._announced = now
            self._announce(self._step)

    def recorded(self, outcome: Outcome) -> Outcome:
        """The outcome with the seconds of its steps."""
        self._account()
        steps = {step: round(seconds, 5) for step, seconds in self._seconds.items() if step}
        details = {**outcome.details, "seconds": steps}
        return replace(outcome, seconds=sum(self._seconds.values()), details=details)

    def _account(self) -> None:
        now = time.perf_counter()
        self._seconds[self._step] = self._seconds.get(self._step, 0.0) + now - self._began
        self._began = now
