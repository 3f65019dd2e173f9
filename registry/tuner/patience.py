"""Waiting for a database that went away for a while: a server that is started again takes seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tuning_db import LostDatabaseError

_Answer = TypeVar("_Answer")

PATIENCE_S = 60.0
"""How long a database may be away before a run ends for it."""

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0


class Patience:
    """Repeats a question to a database that is lost; ``tell`` gets a line each time that the database goes away.

    A question must be harmless to repeat: the server may have carried it out before it went away. After a database that
    stayed away for so long, none is repeated until one is answered.
    """

    def __init__(self, tell: Callable[[str], None] = lambda _: None, seconds: float = PATIENCE_S) -> None:
        self._tell = tell
        self._seconds = seconds
        self._gave_up = False

    def __call__(self, ask: Callable[[], _Answer]) -> _Answer:
        """The answer of ``ask``. Raises LostDatabaseError for a database that stays away."""
        until, pause = 0.0, _FIRST_PAUSE_S
        while True:
            try:
                answer = ask()
                self._gave_up = False
                return answer
            except LostDatabaseError as fault:
                if self._gave_up:
                    raise
                now = time.monotonic()
                if not until:
                    until = now + self._seconds
                    self._tell(f"{fault.message}; trying again for {self._seconds:.0f} s")
                if now + pause > until:
                    self._gave_up = True
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
