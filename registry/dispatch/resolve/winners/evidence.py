"""The evidence for winners: their figures, and the candidates that they were measured against, read when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tuning_db import CandidateKey, Decision
from tuning_db.database.answering import within
from tuning_db.snapshot import StoredWinner, read_runners

from .placed_winners import PlacedWinners, Winner

SECONDS = 2.0
"""The longest wait for a database, in seconds; after that dispatch goes on without it."""


class WinnerEvidence:
    """Reads what winners were measured against: of the user's from ``database``, of shipped ones from the package.

    ``shipped_runners`` are the runners of shipped winners by uid. What cannot be read is passed to ``tell``, once.
    """

    def __init__(
        self,
        placed: PlacedWinners,
        database: str | None,
        shipped_runners: Mapping[str, Mapping[str, CandidateKey]],
        tell: Callable[[str], None],
    ) -> None:
        self._placed = placed
        self._database = database
        self._shipped_runners = shipped_runners
        self._tell = tell
        self._runners: dict[str, Mapping[str, CandidateKey]] = {}

    def runners(self, winner: Winner, *, read: bool = True) -> Mapping[str, CandidateKey]:
        """The best candidate of each implementation in the finals and trials that a winner came from.

        Empty if unknown, or if they are not in memory and ``read`` is False.
        """
        known = self._shipped_runners.get(winner.uid) or self._runners.get(winner.uid)
        if known is None and read and not self._placed.is_shipped(winner):
            try:
                known = read_runners(self._database, winner.uid, SECONDS)
            except Exception as fault:  # whatever a database may hold
                told = f"what it was measured against cannot be read: {type(fault).__name__}: {fault}"
                self._tell(f"{winner.uid}: {told}")
                known = {}
            self._runners[winner.uid] = known
        return known or {}

    def decision(self, winner: Winner) -> tuple[Decision | None, str]:
        """(the decision of a winner with its figures, ""), or (None, why it cannot be read)."""
        if isinstance(winner, Decision):
            return winner, ""
        try:
            history = within(SECONDS, self._placed.stored.url, partial(_history, self._database, winner))
        except Exception as fault:  # whatever a row may hold
            return None, f"{type(fault).__name__}: {fault}"
        found = next((one for one in history if one.uid == winner.uid), None)
        return found, "" if found else "it is not there any more"


def _history(database: str | None, winner: StoredWinner) -> list[Decision]:
    from tuning_db import Store

    with Store.open(database, create=False, migrate=False) as store:
        return store.history(winner.problem, winner.environment.hardware)
