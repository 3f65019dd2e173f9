"""Every valid candidate of a problem, enumerated once: numbers for keys, places for values, arrays for distances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...dispatch.plans.plan import Candidate
from ...problem import canonical_json
from ...space import Config, Space
from ..planning.problems import ProblemPlan

Numbers = NDArray[np.int64]
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Block:
    """The candidates of one implementation: ``start`` to ``stop`` of the joint numbering, and where their values stand.

    ``places[i, p]`` is the place of the value of parameter p in its domain.
    """

    name: str
    space: Space
    start: int
    stop: int
    places: Numbers

    @property
    def size(self) -> int:
        """Candidates."""
        return self.stop - self.start

    @cached_property
    def features(self) -> tuple[Reals, Numbers]:
        """Coordinates for a model, one row a candidate, and which parameter each column belongs to.

        An ordered parameter is one column from 0 to 1; one that has no order is a corner of a simplex with edges of 1.
        """
        columns, owners = [], []
        for number, values in enumerate(self.space.domains.values()):
            place = self.places[:, number]
            if len(values) < 2:
                continue
            if all(isinstance(value, int | float) for value in values):
                columns.append(place / (len(values) - 1))
                owners.append(number)
            else:
                corners = np.eye(len(values))[place] / np.sqrt(2.0)
                columns += list(corners.T)
                owners += [number] * len(values)
        rows = np.stack(columns, axis=1) if columns else np.zeros((self.size, 0))
        return rows.astype(np.float64), np.array(owners, dtype=np.int64)


class JointSpace:
    """The candidates of all supported implementations, numbered from 0 in the order of the plan."""

    def __init__(self, plan: ProblemPlan) -> None:
        self.blocks: dict[str, Block] = {}
        self.candidates: list[Candidate] = []
        for choice in plan.supported:
            implementation = choice.implementation
            space = implementation.space(plan.problem, plan.device)
            start = len(self.candidates)
            self.candidates += [Candidate(implementation, config) for config in choice.configs]
            places = _places(space, choice.configs)
            self.blocks[implementation.name] = Block(implementation.name, space, start, len(self.candidates), places)
        self._numbers = {candidate.key: number for number, candidate in enumerate(self.candidates)}

    def __len__(self) -> int:
        return len(self.candidates)

    def number(self, candidate: Candidate) -> int | None:
        """The candidate's number, by its typed key; None for one that is not valid here."""
        return self._numbers.get(candidate.key)

    def block_of(self, number: int) -> Block:
        """The block that a candidate belongs to."""
        return self.blocks[self.candidates[number].implementation.name]

    def distances(self, block: Block, places: Sequence[int] | Numbers) -> Numbers:
        """L1 distances of the block's candidates from a point with these places."""
        return np.asarray(np.abs(block.places - np.asarray(places)).sum(axis=1), dtype=np.int64)

    def distances_from(self, number: int) -> tuple[Block, Numbers]:
        """A candidate's block, and the candidate's L1 distances from all candidates of the block."""
        block = self.block_of(number)
        return block, self.distances(block, block.places[number - block.start])


def _places(space: Space, configs: Sequence[Config]) -> Numbers:
    orders = [{canonical_json(value): place for place, value in enumerate(values)} for values in space.domains.values()]
    rows = [
        [order[canonical_json(config[name])] for name, order in zip(space.domains, orders, strict=True)]
        for config in configs
    ]
    return np.array(rows, dtype=np.int64).reshape(len(configs), len(orders))
