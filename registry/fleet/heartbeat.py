"""The heartbeat of a lease: a thread that renews it, and ends the work on the job when it is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tuning_db import JobQueue, TuningDBError
from tuning_db.queue.entries import Fence

_BEATS = 6
"""Renewals in the time of one lease: so many may fail in a row, but one, before it is lost."""


class Heartbeat:
    """Renews a lease of ``seconds`` while the context lasts; calls ``lose`` once when it is lost.

    It is lost when the queue says so, and when the database has been out of reach for longer than the lease lasts.
    """

    def __init__(self, queue: JobQueue, fence: Fence, worker: str, seconds: float, lose: Callable[[], None]) -> None:
        self._queue = queue
        self._fence = fence
        self._worker = worker
        self._seconds = seconds
        self._lose = lose
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self.lost = False

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        # a beat that waits for a database out of reach ends by itself; nobody needs it any more
        self._thread.join(timeout=self._seconds / _BEATS)

    def _beat(self) -> None:
        renewed = time.monotonic()
        while not self._over.wait(self._seconds / _BEATS):
            began = time.monotonic()
            try:
                held = self._queue.renew(self._fence, self._seconds)
                self._queue.beat(self._worker, "working")
            except TuningDBError:
                held = began - renewed < self._seconds
            else:
                renewed = began
            if not held:
                self.lost = True
                self._lose()
                return
