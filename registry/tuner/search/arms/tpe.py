"""The arm that asks Optuna: what its tree-structured Parzen estimator suggests."""

from __future__ import annotations

import random

import numpy as np

from ..tried import Tried
from .arm import Arm
from .study import Study

_RANDOM_STARTS = 8


class Tpe(Arm):
    """TPE's suggestion; where that is invalid or tried, a nearest untried candidate of the same implementation."""

    def __init__(self, tried: Tried, random: random.Random, seed: int) -> None:
        super().__init__(tried, random, seed)
        self._study: Study | None = None
        self._followed = 0

    def propose(self) -> int | None:
        space = self.tried.space
        name, places = self._told_study().suggestion()
        block = space.blocks[name]
        untried = np.flatnonzero(self.tried.untried[block.start : block.stop])
        if not len(untried):
            return None
        distances = space.distances(block, places)[untried]
        return block.start + int(self.random.choice(untried[distances == distances.min()]))

    def _told_study(self) -> Study:
        """The study, told of every change: it is made when it is first asked, since importing Optuna takes time."""
        if self._study is None:
            self._study = Study(self.tried.space, self.seed, _RANDOM_STARTS)
        for number, log_us in self.tried.changes[self._followed :]:
            if log_us is None:
                self._study.started(number)
            else:
                self._study.finished(number, log_us)
        self._followed = len(self.tried.changes)
        return self._study
