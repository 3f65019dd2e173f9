"""All winners of an op on one hardware by their places: first the rows of the user's winners, then the shipped ones."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from tuning_db import Decision, InvalidRecordError, Transfer
from tuning_db.snapshot import CREATED, UID, VERSION, Snapshot, StoredWinner

from .... import shipped as shipped_winners
from ....contract import Op
from .neighbours import key_of

Winner = Decision | StoredWinner
"""A shipped decision, or a winner of the user's database without its figures."""


class DecodedWinner(NamedTuple):
    """A winner, and the key of its dimensions: see ``neighbours.key_of``."""

    winner: Winner
    key: frozenset[tuple[str, Hashable]]


class PlacedWinners:
    """The user's winners, ``stored``, and behind them those ``shipped`` that the user has not imported.

    A winner is decoded when it is asked for. One that cannot be decoded is skipped, with its reason passed to ``tell``.
    """

    def __init__(
        self,
        stored: Snapshot,
        shipped: Sequence[Decision],
        software: Mapping[str, str],
        tell: Callable[[str], None],
    ) -> None:
        self.stored = stored
        self._all_shipped = shipped
        self._software = software
        self._tell = tell
        self._decoded: dict[int, DecodedWinner | None] = {}

    @cached_property
    def behind(self) -> tuple[Decision, ...]:
        """The shipped winners that have places."""
        return tuple(one for one in self._all_shipped if self.is_shipped(one))

    @cached_property
    def _shipped_uids(self) -> frozenset[str]:
        # without those that the user has imported
        uids = frozenset(one.uid for one in self._all_shipped)
        return uids.difference(self.stored.columns[UID]) if uids else uids

    @property
    def count(self) -> int:
        """The number of winners, each of which has a place."""
        return self.stored.count + len(self.behind)

    def is_shipped(self, winner: Winner) -> bool:
        """True if a winner is shipped and not in the user's database."""
        return winner.uid in self._shipped_uids

    def origin(self, winner: Winner) -> str:
        """The origin of a winner as text."""
        return f"shipped with {shipped_winners.origin()}" if self.is_shipped(winner) else self.stored.url

    def at(self, place: int) -> DecodedWinner | None:
        """The winner at ``place``; None if it is skipped."""
        if place not in self._decoded:
            try:
                winner = self.stored.winner(place) if place < self.stored.count else self._shipped(place)
                self._decoded[place] = DecodedWinner(winner, key_of(winner.problem.dims))
            except InvalidRecordError as fault:
                self._decoded[place] = None
                self._tell(fault.message)
        return self._decoded[place]

    def bad(self, place: int, why: str) -> None:
        """Skips the winner at ``place``; it is valid JSON, or its own fault is told."""
        if (found := self.at(place)) is not None:
            self._decoded[place] = None
            self._tell(f"{self.origin(found.winner)}: the winner {found.winner.uid}: {why}")

    def alike(self) -> Iterator[tuple[Any, Sequence[int]]]:
        """Dimensions with all static ones, and the places of winners that have these; other values if unknown."""
        yield from self.stored.alike()
        for place, decision in enumerate(self.behind, self.stored.count):
            yield decision.problem.dims, (place,)

    def dims(self, places: Sequence[int]) -> list[Any]:
        """The dimensions of the winners at ascending ``places``; None for those that cannot be decoded."""
        own = bisect.bisect_left(places, self.stored.count)
        return [*self.stored.dims(places[:own]), *(self._shipped(place).problem.dims for place in places[own:])]

    def transferring(self) -> Collection[int]:
        """The places of winners that were verified at other sizes, too."""
        count = self.stored.count
        return [*self.stored.transferring(), *(count + each for each, one in enumerate(self.behind) if one.transfers)]

    def transfers(self, place: int) -> Mapping[str, Transfer]:
        """The other sizes at which the winner at ``place`` was verified."""
        return self.stored.transfers(place) if place < self.stored.count else self._shipped(place).transfers

    def in_rank(self, op: Op, places: Iterable[int]) -> list[int]:
        """The places in order of precedence: the user's, of the op's version, of this software, the newest first."""
        count, columns, found = self.stored.count, self.stored.columns, list(places)
        if len(found) < 2:
            return found
        own = [place for place in found if place < count]
        own.sort(key=lambda place: (str(columns[CREATED][place]), str(columns[UID][place])), reverse=True)
        own.sort(
            key=lambda place: (columns[VERSION][place] != op.version, self.stored.software_of(place) != self._software)
        )

        def shipped_rank(place: int) -> tuple[bool, bool]:
            decision = self._shipped(place)
            return decision.problem.op_version != op.version, decision.environment.software != self._software

        return [*own, *sorted((place for place in found if place >= count), key=shipped_rank)]

    def _shipped(self, place: int) -> Decision:
        return self.behind[place - self.stored.count]
