"""The steps of a job: told as they begin, and how long each took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from ..jobs import Outcome

Announce = Callable[[str], None]
"""Tells the run which step begins, so that its deadline starts then."""


class Steps:
    """Announces steps and adds up their seconds, so that a run can say where the device's time went."""

    def __init__(self, announce: Announce) -> None:
        self._announce = announce
        self._seconds: dict[str, float] = {}
        self._step = ""
        self._began = time.perf_counter()

    def __call__(self, step: str) -> None:
        self._account()
        self._step = step
        self._announce(step)

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
