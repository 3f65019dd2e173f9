"""The winners of one op on one hardware, in memory: finds those of exactly a problem, and those nearest to it."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuning_db import CandidateKey, Decision, InvalidRecordError, Transfer
from tuning_db.database.answering import within
from tuning_db.snapshot import CANDIDATE, CREATED, UID, VERSION, Snapshot, StoredWinner, read_runners

from ... import shipped
from ...contract import Op
from ...problem import Problem
from .learnt import LearntDefault
from .neighbours import Neighbours, key_of, may_differ, sizes_of, unlike
from .similar_statics import Similar, SimilarStatics
from .static_groups import StaticGroups

Winner = Decision | StoredWinner
"""A shipped decision, or a winner of the user's database without its figures."""

WinnerSource = tuple[int, str, str]
"""Version of the op, name and fingerprint of an implementation: either all winners of a source hold, or none."""

SECONDS = 2.0
"""The longest wait for a database, in seconds; after that dispatch goes on without it."""

_EQUAL = 1 + 1e-9
"""Distances within this factor are compared again exactly."""


@dataclass(frozen=True)
class Near:
    """A winner of another problem: ``octaves`` is its distance along ``Op.near_along``, in powers of two."""

    decision: Winner
    octaves: float


class _Known(NamedTuple):
    winner: Winner
    key: frozenset[tuple[str, Hashable]]


@dataclass(frozen=True)
class OpWinners:
    """The user's winners, ``stored``, and those ``shipped`` with the package, which come after them.

    A shipped winner is used if the user has none for a problem, or none that holds. Of several for one problem those of
    this op version come first, then those of this ``software``, then the newest. A winner that cannot be decoded is
    skipped, with its reason passed to ``tell``. ``fault`` says why something could not be read at all.
    """

    stored: Snapshot = field(default_factory=Snapshot)
    fault: str = ""
    shipped: tuple[Decision, ...] = ()
    software: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    database: str | None = field(default=None, repr=False, compare=False)
    learnt: LearntDefault | None = field(default=None, repr=False, compare=False)
    shipped_runners: Mapping[str, Mapping[str, CandidateKey]] = field(default_factory=dict, repr=False, compare=False)
    tell: Callable[[str], None] = field(default=lambda _: None, repr=False, compare=False)
    _groups: dict[tuple[str, ...], StaticGroups] = field(default_factory=dict, init=False, repr=False, compare=False)
    _similar: dict[tuple[str, ...], SimilarStatics] = field(default_factory=dict, init=False, repr=False, compare=False)
    _runners: dict[str, Mapping[str, CandidateKey]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _known: dict[int, _Known | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def is_empty(self) -> bool:
        return not (self.stored.count or self.shipped)

    def exact(self, op: Op, problem: Problem) -> tuple[Winner, ...]:
        """The winners of exactly these dimensions, one for each software, the user's first."""
        group = self._group(op, problem.dims)
        if group is None:
            return ()
        key = key_of(problem.dims)
        known = map(self._at, self._in_rank(op, group.same(sizes_of(op, problem.dims))))
        return tuple([one.winner for one in known if one is not None and one.key == key])

    def nearest(
        self, op: Op, problem: Problem, spent: Collection[WinnerSource] = (), *, own: bool = False
    ) -> Iterator[Near]:
        """Winners with the problem's static dimensions, or that transfer to them, the nearest first.

        Each candidate is yielded once among the user's winners, and once among the shipped. ``own``: with winners of
        exactly the problem.

        Of equally near winners those with the problem's distribution of data come first, then by the declared order of
        distributions, then the user's, then larger problems. Winners of sources in ``spent`` are left out; the caller
        may add to it between two items.
        """
        group = self._group(op, problem.dims)
        if group is None or (spent and self._all_spent(group, spent)):
            return
        here = sizes_of(op, problem.dims)
        far = group.octaves(here)
        while (least := float(far.min())) < np.inf:
            close = np.flatnonzero(far <= least * _EQUAL)
            for octaves, index, one in self._ranked(op, problem, group, close.tolist(), here):
                if far[index] < np.inf and (own or octaves > 0 or one.key != key_of(problem.dims)):
                    yield Near(one.winner, octaves)
                    self._strike(far, group, index, source_of(one.winner) in spent)
            far[close] = np.inf

    def across(
        self, op: Op, problem: Problem, near: Winner, holds: Callable[[Winner], bool] = lambda _: True
    ) -> Near | None:
        """The nearest winner that ``holds``, on the other side of the problem than ``near``.

        In each size the problem is between both. None if there is no such winner, or if ``near`` has the problem's own
        sizes.
        """
        group = self._group(op, problem.dims)
        here, there = sizes_of(op, problem.dims), sizes_of(op, near.problem.dims)
        if group is None or here == there:
            return None
        far = group.across(here, there)
        while (least := float(far.min())) < np.inf:
            close = np.flatnonzero(far <= least * _EQUAL)
            for octaves, _, one in self._ranked(op, problem, group, close.tolist(), here):
                if holds(one.winner):
                    return Near(one.winner, octaves)
            far[close] = np.inf
        return None

    def similar(self, op: Op, problem: Problem) -> list[Similar]:
        """Static dimensions near the problem's that have winners, the nearest first."""
        static, groups = self._groups_by(op, problem.dims)
        known = self._similar.get(static)
        if known is None:
            known = self._similar[static] = SimilarStatics(static, groups.places)
        near = known.near(problem.dims)
        return [similar for similar in near if self._group(op, {**problem.dims, **similar.static}) is not None]

    def one_of_each_source(self, op: Op, dims: Mapping[str, Any]) -> list[Winner]:
        """A winner of each source that has one for these static dimensions, or one that transfers to them."""
        group = self._group(op, dims)
        if group is None:
            return []
        _, firsts = np.unique(self._source_numbers[group.at], return_index=True)
        places = [group.places[index] for index in firsts.tolist()]
        return [one.winner for one in map(self._at, places) if one is not None]

    def stretch(self, op: Op, dims: Mapping[str, Any], name: str) -> float:
        """The greatest size of static dimension ``name`` to which exactly the winners transfer that do to ``dims``."""
        return self._groups_by(op, dims)[1].stretch(dims, name)

    def runners(self, winner: Winner, *, read: bool = True) -> Mapping[str, CandidateKey]:
        """The best candidate of each implementation in the finals and trials that a winner came from.

        Empty if unknown, or if they are not in memory and ``read`` is False.
        """
        known = self.shipped_runners.get(winner.uid) or self._runners.get(winner.uid)
        if known is None and read and not self.is_shipped(winner):
            try:
                known = read_runners(self.database, winner.uid, SECONDS)
            except Exception as fault:  # whatever a database may hold
                self.tell(f"{winner.uid}: what it was measured against cannot be read: {type(fault).__name__}: {fault}")
                known = {}
            self._runners[winner.uid] = known
        return known or {}

    def is_shipped(self, winner: Winner) -> bool:
        """True if a winner is shipped and not in the user's database."""
        return winner.uid in self._shipped_uids

    def source(self, winner: Winner) -> str:
        """The origin of a winner as text."""
        return f"shipped with {shipped.origin()}" if self.is_shipped(winner) else self.stored.url

    def evidence(self, winner: Winner) -> tuple[Decision | None, str]:
        """(the decision of a winner with its figures, ""), or (None, why it cannot be read)."""
        if isinstance(winner, Decision):
            return winner, ""
        try:
            history = within(SECONDS, self.stored.url, partial(_history, self.database, winner))
        except Exception as fault:  # whatever a row may hold
            return None, f"{type(fault).__name__}: {fault}"
        found = next((one for one in history if one.uid == winner.uid), None)
        return found, "" if found else "it is not there any more"

    def ranking(self, op: Op) -> dict[Hashable, tuple[Hashable, ...]]:
        """The candidates in order of precedence, by version of the op and dimensions."""
        return self._in_order(op, lambda winner: winner.candidate.key)

    def ranked_evidence(self, op: Op) -> dict[Hashable, tuple[Hashable, ...]]:
        """Like ``ranking``, with the times of other implementations over each candidate's, and its transfers."""

        def told(winner: Winner) -> Hashable:
            transfers = frozenset((name, one.low, one.high, one.codes) for name, one in winner.transfers.items())
            return winner.candidate.key, frozenset(winner.baselines.items()), transfers

        return self._in_order(op, told)

    def _in_order(self, op: Op, told: Callable[[Winner], Hashable]) -> dict[Hashable, tuple[Hashable, ...]]:
        found: dict[Hashable, tuple[Hashable, ...]] = {}
        for place in self._in_rank(op, range(self.count)):
            if (one := self._at(place)) is not None:
                problem = one.winner.problem.op_version, one.key
                found[problem] = (*found.get(problem, ()), told(one.winner))
        return found

    # --- places: first the rows of the user's winners, then the shipped ones

    @cached_property
    def _behind(self) -> tuple[Decision, ...]:
        return tuple(one for one in self.shipped if self.is_shipped(one))

    @cached_property
    def _shipped_uids(self) -> frozenset[str]:
        # without those that the user has imported
        uids = frozenset(one.uid for one in self.shipped)
        return uids.difference(self.stored.columns[UID]) if uids else uids

    @property
    def count(self) -> int:
        """The number of winners, each of which has a place."""
        return self.stored.count + len(self._behind)

    def alike(self) -> Iterator[tuple[Any, Sequence[int]]]:
        """Dimensions with all static ones, and the places of winners that have these; other values if unknown."""
        yield from self.stored.alike()
        for place, decision in enumerate(self._behind, self.stored.count):
            yield decision.problem.dims, (place,)

    def dims(self, places: Sequence[int]) -> list[Any]:
        """The dimensions of the winners at ascending ``places``; None for those that cannot be decoded."""
        own = bisect.bisect_left(places, self.stored.count)
        return [*self.stored.dims(places[:own]), *(self._shipped(place).problem.dims for place in places[own:])]

    def transferring(self) -> Collection[int]:
        """The places of winners that were verified at other sizes, too."""
        count = self.stored.count
        return [*self.stored.transferring(), *(count + each for each, one in enumerate(self._behind) if one.transfers)]

    def transfers(self, place: int) -> Mapping[str, Transfer]:
        """The other sizes at which the winner at ``place`` was verified."""
        return self.stored.transfers(place) if place < self.stored.count else self._shipped(place).transfers

    def bad(self, place: int, why: str) -> None:
        """Skips the winner at ``place``; it is valid JSON, or its own fault is told."""
        if (found := self._at(place)) is not None:
            self._known[place] = None
            self.tell(f"{self.source(found.winner)}: the winner {found.winner.uid}: {why}")

    def _shipped(self, place: int) -> Decision:
        return self._behind[place - self.stored.count]

    def _at(self, place: int) -> _Known | None:
        if place not in self._known:
            try:
                winner = self.stored.winner(place) if place < self.stored.count else self._shipped(place)
                self._known[place] = _Known(winner, key_of(winner.problem.dims))
            except InvalidRecordError as fault:
                self._known[place] = None
                self.tell(fault.message)
        return self._known[place]

    def _in_rank(self, op: Op, places: Iterable[int]) -> list[int]:
        count, columns, found = self.stored.count, self.stored.columns, list(places)
        if len(found) < 2:
            return found
        own = [place for place in found if place < count]
        own.sort(key=lambda place: (str(columns[CREATED][place]), str(columns[UID][place])), reverse=True)
        own.sort(
            key=lambda place: (columns[VERSION][place] != op.version, self.stored.software_of(place) != self.software)
        )

        def shipped_rank(place: int) -> tuple[bool, bool]:
            decision = self._shipped(place)
            return decision.problem.op_version != op.version, decision.environment.software != self.software

        return [*own, *sorted((place for place in found if place >= count), key=shipped_rank)]

    # --- neighbours

    def _group(self, op: Op, dims: Mapping[str, Any]) -> Neighbours | None:
        return self._groups_by(op, dims)[1].group(dims) if may_differ(op) <= dims.keys() else None

    def _groups_by(self, op: Op, dims: Mapping[str, Any]) -> tuple[tuple[str, ...], StaticGroups]:
        """The static dimensions among ``dims``, and all winners grouped by their values."""
        static = tuple(sorted(dims.keys() - op.dynamic - op.distributions.keys()))
        groups = self._groups.get(static)
        if groups is None:
            groups = self._groups[static] = StaticGroups(op, static, self)
        return static, groups

    def _ranked(
        self, op: Op, problem: Problem, group: Neighbours, close: list[int], here: tuple[float, ...]
    ) -> list[tuple[float, int, _Known]]:
        """(distance, index, winner) of the equally near winners at ``close``, in order of precedence."""
        loose, names, key = may_differ(op), op.near_along, key_of(problem.dims)
        order = {place: rank for rank, place in enumerate(self._in_rank(op, [group.places[index] for index in close]))}
        ranked = []
        for index in close:
            place = group.places[index]
            one = self._at(place)
            if one is None or not all(name in loose for name, _ in one.key ^ key):
                continue
            dims = one.winner.problem.dims
            larger = [-float(dims[name]) for name in names]
            tie = unlike(op, problem.dims, dims), place >= self.stored.count, larger, order[place]
            ranked.append((group.octaves_of(here, index), *tie, index, one))
        ranked.sort(key=lambda each: each[:-2])
        return [(each[0], *each[-2:]) for each in ranked]

    def _strike(self, far: NDArray[np.float64], group: Neighbours, index: int, whole: bool) -> None:
        """Leave out the other winners of the candidate at ``index``; ``whole``: all winners of its source."""
        numbers = (self._source_numbers if whole else self._candidates[0])[group.at]
        far[numbers == numbers[index]] = np.inf

    def _all_spent(self, group: Neighbours, spent: Collection[WinnerSource]) -> bool:
        """True if the sources of all winners of a group are in ``spent``."""
        if group.sources is None:
            group.sources = frozenset(np.unique(self._source_numbers[group.at]).tolist())
        return all(self._sources[number] in spent for number in group.sources)

    @cached_property
    def _candidates(self) -> tuple[NDArray[np.int64], list[WinnerSource | Hashable]]:
        """For each winner the number of its candidate, those of the user and the shipped apart; and their sources."""
        numbers: dict[tuple[Any, ...], int] = {}
        columns = self.stored.columns
        own = zip(columns[CANDIDATE], columns[VERSION], strict=True)
        shipped = ((one.candidate.key, one.problem.op_version, source_of(one)) for one in self._behind)
        found = [numbers.setdefault(one, len(numbers)) for each in (own, shipped) for one in each]
        return np.array(found, np.int64), [self._source(*one) for one in numbers]

    def _source(self, candidate: Any, version: Any, source: WinnerSource | None = None) -> WinnerSource | Hashable:
        """The source of a candidate; that of a stored one that is not found is a source by itself."""
        return source or (version, *self.stored.candidates.get(candidate, (candidate,))[1:3])

    @cached_property
    def _sources(self) -> list[WinnerSource | Hashable]:
        """The sources of all winners, each once."""
        return list(dict.fromkeys(self._candidates[1]))

    @cached_property
    def _source_numbers(self) -> NDArray[np.int64]:
        """For each winner the place of its source in ``_sources``."""
        places = {source: place for place, source in enumerate(self._sources)}
        return np.array([places[source] for source in self._candidates[1]], np.int64)[self._candidates[0]]


def _history(database: str | None, winner: StoredWinner) -> list[Decision]:
    from tuning_db import Store

    with Store.open(database, create=False, migrate=False) as store:
        return store.history(winner.problem, winner.environment.hardware)


def source_of(winner: Winner) -> WinnerSource:
    """The source of a winner: all winners of one source hold, or none does."""
    return winner.problem.op_version, winner.candidate.implementation, winner.candidate.fingerprint
