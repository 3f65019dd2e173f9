"""Every valid candidate of a problem by its number; a candidate itself is made when it is asked for."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...dispatch.plans.plan import Candidate
from ...implementation import Implementation
from ...points import Numbers, Points
from ...space import Space
from ..planning.problems import ProblemPlan

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Block:
    """The candidates of one implementation: numbers ``start`` to ``stop`` of the joint space are rows 0 and up here."""

    implementation: Implementation
    space: Space
    points: Points
    start: int
    numbers: NDArray[np.integer[Any]]
    """Held here, so that they are found once."""

    @property
    def name(self) -> str:
        """The implementation's name."""
        return self.implementation.name

    @property
    def stop(self) -> int:
        """The number behind the block's last."""
        return self.start + len(self.points)

    @property
    def size(self) -> int:
        """Candidates."""
        return len(self.points)

    def places(self, number: int) -> list[int]:
        """Where the values of the candidate with that number stand in their domains."""
        row = number - self.start
        found: list[int] = self.points.places(slice(row, row + 1))[0].tolist()
        return found

    def owners(self) -> Numbers:
        """Which parameter each column of ``features`` belongs to."""
        owners: list[int] = []
        for number, values in enumerate(self.space.domains.values()):
            owners += [number] * (0 if len(values) < 2 else 1 if _ordered(values) else len(values))
        return np.array(owners, dtype=np.int64)

    def features(self, rows: Numbers) -> Reals:
        """Coordinates for a model, of the candidates in these rows.

        An ordered parameter is one column from 0 to 1; one that has no order is a corner of a simplex with edges of 1.
        """
        places, columns = self.points.places(rows), []
        for number, values in enumerate(self.space.domains.values()):
            place = places[:, number]
            if len(values) < 2:
                continue
            if _ordered(values):
                columns.append(place / (len(values) - 1))
            else:
                columns += list((np.eye(len(values))[place] / np.sqrt(2.0)).T)
        features = np.stack(columns, axis=1) if columns else np.zeros((len(rows), 0))
        return features.astype(np.float64)


class JointSpace:
    """The candidates of all supported implementations, numbered from 0 in the order of the plan."""

    def __init__(self, plan: ProblemPlan) -> None:
        self.blocks: dict[str, Block] = {}
        self._length = 0
        for choice in plan.supported:
            implementation = choice.implementation
            assert choice.space is not None
            points = Points(choice.space)
            block = Block(implementation, choice.space, points, self._length, points.numbers)
            self.blocks[implementation.name] = block
            self._length = block.stop
        self._list = list(self.blocks.values())
        self._stops = [block.stop for block in self._list]

    def __len__(self) -> int:
        return self._length

    def candidate(self, number: int) -> Candidate:
        """The candidate with that number."""
        block = self.block_of(number)
        return Candidate(block.implementation, block.points[number - block.start])

    def number(self, candidate: Candidate) -> int | None:
        """The candidate's number, by its typed values; None for one that is not valid here."""
        block = self.blocks.get(candidate.implementation.name)
        row = None if block is None else block.points.row(candidate.config)
        return None if block is None or row is None else block.start + row

    def block_of(self, number: int) -> Block:
        """The block that a candidate belongs to."""
        return self._list[bisect.bisect_right(self._stops, number)]

    def distances(self, block: Block, places: Sequence[int] | Numbers) -> Numbers:
        """L1 distances of the block's candidates from a point with these places."""
        return block.points.distances(places)

    def near(self, number: int, distance: int) -> list[int]:
        """The candidates of the implementation at exactly this L1 distance from a candidate, ascending."""
        block = self.block_of(number)
        return [block.start + row for row in block.points.near(block.places(number), distance)]


def _ordered(values: Sequence[object]) -> bool:
    return all(isinstance(value, int | float) for value in values)
