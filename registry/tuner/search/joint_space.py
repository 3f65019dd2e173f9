"""Every valid candidate of a problem by its number, as Optuna's parameters, and as coordinates for a model."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray

from ...points import PointNumbers, Points
from ...space import Config, Space
from ..planning.problems import ProblemPlan
from .parameters import IMPLEMENTATION, distributions, parameter

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Block:
    """The candidates of one implementation: numbers ``start`` to ``stop`` of the joint space are rows 0 and up here."""

    name: str
    space: Space
    points: Points
    start: int
    numbers: NDArray[np.integer[Any]]
    """``points.numbers``, held here so that they are found once: ``points`` drops them when nothing holds them."""

    @property
    def stop(self) -> int:
        return self.start + len(self.points)

    @property
    def size(self) -> int:
        return len(self.points)

    @property
    def parameters(self) -> list[str]:
        """The names of the block's own parameters in a study."""
        return [parameter(self.name, name) for name in self.space.domains]

    def places(self, number: int) -> list[int]:
        """The place of each value of the candidate with that number in its domain."""
        row = number - self.start
        found: list[int] = self.points.places(slice(row, row + 1))[0].tolist()
        return found

    def owners(self) -> PointNumbers:
        """The number of the parameter to which each column of ``features`` belongs."""
        owners: list[int] = []
        for number, values in enumerate(self.space.domains.values()):
            owners += [number] * (0 if len(values) < 2 else 1 if _ordered(values) else len(values))
        return np.array(owners, dtype=np.int64)

    def features(self, rows: PointNumbers) -> Reals:
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
    """The candidates of several implementations, by their names, numbered from 0 in the order given."""

    def __init__(self, spaces: Mapping[str, Space]) -> None:
        self.blocks: dict[str, Block] = {}
        self._length = 0
        for name, space in spaces.items():
            points = Points(space)
            self.blocks[name] = block = Block(name, space, points, self._length, points.numbers)
            self._length = block.stop
        self._list = list(self.blocks.values())
        self._stops = [block.stop for block in self._list]
        self.distributions = distributions({name: space.domains for name, space in spaces.items()})

    @classmethod
    def of(cls, plan: ProblemPlan) -> JointSpace:
        """The candidates of a problem's supported implementations."""
        return cls({choice.implementation.name: choice.space for choice in plan.supported if choice.space is not None})

    def __len__(self) -> int:
        return self._length

    def number(self, name: str, config: Config) -> int | None:
        """The number of a configuration of the named implementation, by its typed values; None: not valid here."""
        block = self.blocks.get(name)
        row = None if block is None else block.points.row(config)
        return None if block is None or row is None else block.start + row

    def block_of(self, number: int) -> Block:
        return self._list[bisect.bisect_right(self._stops, number)]

    def distances(self, block: Block, places: Sequence[int] | PointNumbers) -> PointNumbers:
        """L1 distances of the block's candidates from a point with these places."""
        return block.points.distances(places)

    def near(self, number: int, distance: int) -> list[int]:
        """The candidates of the implementation at exactly this L1 distance from a candidate, ascending."""
        block = self.block_of(number)
        return [block.start + row for row in block.points.near(block.places(number), distance)]

    def parameters(self, number: int) -> dict[str, Any]:
        block = self.block_of(number)
        chosen = zip(block.parameters, block.places(number), strict=True)
        return {IMPLEMENTATION: block.name, **{name: self.distributions[name].choices[place] for name, place in chosen}}

    def number_of(self, parameters: Mapping[str, Any]) -> int | None:
        """The number of the candidate with these parameters; None where one is missing or a constraint is broken."""
        block = self.blocks.get(parameters.get(IMPLEMENTATION, ""))
        if block is None or not parameters.keys() >= set(block.parameters):
            return None
        places = [self.distributions[name].choices.index(parameters[name]) for name in block.parameters]
        return next((block.start + row for row in block.points.near(places, 0)), None)

    def suggest(self, trial: optuna.Trial) -> tuple[str, dict[str, Any]]:
        """The candidate of a running trial: an implementation's name, and a configuration, for an objective to time."""
        block = self.blocks[str(trial.suggest_categorical(IMPLEMENTATION, list(self.blocks)))]
        config: dict[str, Any] = {}
        for (name, values), own in zip(block.space.domains.items(), block.parameters, strict=True):
            offered = self.distributions[own].choices
            config[name] = values[offered.index(trial.suggest_categorical(own, offered))]
        return block.name, config


def _ordered(values: Sequence[object]) -> bool:
    return all(isinstance(value, int | float) for value in values)
