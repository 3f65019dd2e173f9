"""The sources of winners: all winners of one source hold, or none does, so that one of them tells about the others."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuning_db.snapshot import CANDIDATE, VERSION

from .neighbours import Neighbours, SizeNumbers
from .placed_winners import PlacedWinners, Winner

WinnerSource = tuple[int, str, str]
"""Version of the op, name and fingerprint of an implementation: either all winners of a source hold, or none."""


def source_of(winner: Winner) -> WinnerSource:
    """The source of a winner: all winners of one source hold, or none does."""
    return winner.problem.op_version, winner.candidate.implementation, winner.candidate.fingerprint


class WinnerSources:
    """Numbers for the candidates and the sources of all winners, by which groups of winners are struck out at once.

    They are found when they are first needed, from columns: no winner is decoded for them.
    """

    def __init__(self, placed: PlacedWinners) -> None:
        self._placed = placed

    def first_of_each(self, group: Neighbours) -> list[int]:
        """The places of winners of a group, the first of each source."""
        _, firsts = np.unique(self._source_numbers[group.at], return_index=True)
        return [group.places[index] for index in firsts.tolist()]

    def strike(self, far: SizeNumbers, group: Neighbours, index: int, *, whole: bool) -> None:
        """Make all winners of the candidate at ``index`` infinitely far; ``whole``: all winners of its source."""
        numbers = (self._source_numbers if whole else self._candidates[0])[group.at]
        far[numbers == numbers[index]] = np.inf

    def all_spent(self, group: Neighbours, spent: Collection[WinnerSource]) -> bool:
        """True if the sources of all winners of a group are in ``spent``."""
        if group.sources is None:
            group.sources = frozenset(np.unique(self._source_numbers[group.at]).tolist())
        return all(self._sources[number] in spent for number in group.sources)

    @cached_property
    def _candidates(self) -> tuple[NDArray[np.int64], list[WinnerSource | Hashable]]:
        """For each winner the number of its candidate, those of the user and the shipped apart; and their sources."""
        numbers: dict[tuple[Any, ...], int] = {}
        columns = self._placed.stored.columns
        own = zip(columns[CANDIDATE], columns[VERSION], strict=True)
        shipped = ((one.candidate.key, one.problem.op_version, source_of(one)) for one in self._placed.behind)
        found = [numbers.setdefault(one, len(numbers)) for each in (own, shipped) for one in each]
        return np.array(found, np.int64), [self._source(*one) for one in numbers]

    def _source(self, candidate: Any, version: Any, source: WinnerSource | None = None) -> WinnerSource | Hashable:
        """The source of a candidate; that of a stored one that is not found is a source by itself."""
        return source or (version, *self._placed.stored.candidates.get(candidate, (candidate,))[1:3])

    @cached_property
    def _sources(self) -> list[WinnerSource | Hashable]:
        """The sources of all winners, each once."""
        return list(dict.fromkeys(self._candidates[1]))

    @cached_property
    def _source_numbers(self) -> NDArray[np.int64]:
        """For each winner the place of its source in ``_sources``."""
        places = {source: place for place, source in enumerate(self._sources)}
        return np.array([places[source] for source in self._candidates[1]], np.int64)[self._candidates[0]]
