"""Trials of a run on their way to a store: a server gets those of half a second in one transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tuning_db import Trial

WITHIN_S = 0.5
"""The longest that a trial waits for others, if ``write_due`` is called often: a loop's turn may take as long."""

_MOST = 64
"""Trials that are written at once, however short they have waited."""


class TrialBatches:
    """Hands trials to ``write``, each as it comes, or ``together`` those that came within ``WITHIN_S``.

    A transaction of a file takes a fraction of the time in which a server answers, and a server has many clients.
    ``write`` returns for each trial the one that is stored, which may be another run's. When it raises, its trials wait
    for the next call: it must be harmless to write them again.
    """

    def __init__(self, write: Callable[[Sequence[Trial]], Sequence[Trial]], *, together: bool) -> None:
        self._write = write
        self._together = together
        self._waiting: list[Trial] = []
        self._since = 0.0
        self._stored_as: dict[str, str] = {}

    def add(self, trial: Trial) -> Trial:
        """The trial as it is stored; itself if it is to be written with others."""
        if not self._together:
            return self._write([trial])[0]
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting.append(trial)
        self.write_due()
        return trial

    def write_due(self) -> None:
        """Write the trials that wait, if the first has waited for long enough, or if they are many."""
        if len(self._waiting) >= _MOST or (self._waiting and time.monotonic() - self._since >= WITHIN_S):
            self.write()

    def write(self) -> None:
        """Write the trials that wait."""
        if not self._waiting:
            return
        stored = self._write(self._waiting)
        pairs = zip(self._waiting, stored, strict=True)
        self._stored_as |= {own.uid: other.uid for own, other in pairs if own.uid != other.uid}
        self._waiting = []

    def stored_uid(self, uid: str) -> str:
        """The uid under which the trial ``uid`` is stored: its own, or that of another run's trial in its place."""
        return self._stored_as.get(uid, uid)
