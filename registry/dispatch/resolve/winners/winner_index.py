"""Winners by dimensions: finds those of exactly a problem, those nearest to it, and those of similar static ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....contract import Op
from ....problem import Problem
from .neighbours import Neighbours, SizeNumbers, key_of, may_differ, sizes_of, unlike
from .placed_winners import DecodedWinner, PlacedWinners, Winner
from .similar_statics import Similar, SimilarStatics
from .static_groups import StaticGroups
from .winner_sources import WinnerSource, WinnerSources, source_of

_EQUAL = 1 + 1e-9
"""Distances within this factor are compared again exactly."""

_Sizes = tuple[float, ...]

_Ranked = tuple[float, int, DecodedWinner]
"""The exact distance of a winner, its number in its group, and the winner."""


@dataclass(frozen=True)
class Near:
    """A winner of another problem: ``octaves`` is its distance along ``Op.near_along``, in powers of two."""

    decision: Winner
    octaves: float


class WinnerIndex:
    """Finds winners of an op by the dimensions of problems, in groups of equal static dimensions."""

    def __init__(self, placed: PlacedWinners) -> None:
        self._placed = placed
        self._sources = WinnerSources(placed)
        self._groups: dict[tuple[str, ...], StaticGroups] = {}
        self._similar: dict[tuple[str, ...], SimilarStatics] = {}

    def exact(self, op: Op, problem: Problem) -> tuple[Winner, ...]:
        """The winners of exactly these dimensions, one for each software, the user's first."""
        group = self._group(op, problem.dims)
        if group is None:
            return ()
        key = key_of(problem.dims)
        known = map(self._placed.at, self._placed.in_rank(op, group.same(sizes_of(op, problem.dims))))
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
        if group is None or (spent and self._sources.all_spent(group, spent)):
            return
        here = sizes_of(op, problem.dims)
        far = group.octaves(here)
        for octaves, index, one in self._by_distance(op, problem, group, here, far):
            if far[index] < np.inf and (own or octaves > 0 or one.key != key_of(problem.dims)):
                yield Near(one.winner, octaves)
                self._sources.strike(far, group, index, whole=source_of(one.winner) in spent)

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
        found = self._by_distance(op, problem, group, here, group.across(here, there))
        return next((Near(one.winner, octaves) for octaves, _, one in found if holds(one.winner)), None)

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
        known = map(self._placed.at, self._sources.first_of_each(group))
        return [one.winner for one in known if one is not None]

    def stretch(self, op: Op, dims: Mapping[str, Any], name: str) -> float:
        """The greatest size of static dimension ``name`` to which exactly the winners transfer that do to ``dims``."""
        return self._groups_by(op, dims)[1].stretch(dims, name)

    def _group(self, op: Op, dims: Mapping[str, Any]) -> Neighbours | None:
        return self._groups_by(op, dims)[1].group(dims) if may_differ(op) <= dims.keys() else None

    def _groups_by(self, op: Op, dims: Mapping[str, Any]) -> tuple[tuple[str, ...], StaticGroups]:
        """The static dimensions among ``dims``, and all winners grouped by their values."""
        static = tuple(sorted(dims.keys() - op.dynamic - op.distributions.keys()))
        groups = self._groups.get(static)
        if groups is None:
            groups = self._groups[static] = StaticGroups(op, static, self._placed)
        return static, groups

    def _by_distance(
        self, op: Op, problem: Problem, group: Neighbours, here: _Sizes, far: SizeNumbers
    ) -> Iterator[_Ranked]:
        """The winners of a group by their distances ``far`` from the sizes ``here``, equal ones in order of precedence.

        Those that are infinitely far are left out. Makes the distances of those that were yielded infinite; the caller
        may make further ones infinite between two items.
        """
        while (least := float(far.min())) < np.inf:
            close = np.flatnonzero(far <= least * _EQUAL)
            yield from self._ranked(op, problem, group, here, close.tolist())
            far[close] = np.inf

    def _ranked(self, op: Op, problem: Problem, group: Neighbours, here: _Sizes, close: list[int]) -> list[_Ranked]:
        """The equally near winners with the numbers ``close``, in order of precedence."""
        placed, loose, names, key = self._placed, may_differ(op), op.near_along, key_of(problem.dims)
        order = {place: rank for rank, place in enumerate(placed.in_rank(op, [group.places[index] for index in close]))}
        ranked = []
        for index in close:
            place = group.places[index]
            one = placed.at(place)
            if one is None or not all(name in loose for name, _ in one.key ^ key):
                continue
            dims = one.winner.problem.dims
            larger = [-float(dims[name]) for name in names]
            tie = unlike(op, problem.dims, dims), place >= placed.stored.count, larger, order[place]
            ranked.append((group.octaves_of(here, index), *tie, index, one))
        ranked.sort(key=lambda each: each[:-2])
        return [(each[0], *each[-2:]) for each in ranked]
