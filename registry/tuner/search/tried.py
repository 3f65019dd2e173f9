"""Which candidates of a joint space are untried, being tried, or known by their time or failure: read from a study."""

from __future__ import annotations

import math

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from .joint_space import JointSpace

_BEST_KEPT = 3
_ENQUEUED = "fixed_params"


class Tried:
    """Every candidate of a joint space by its number, and what became of it.

    ``untried[number]`` is true until a trial of the candidate begins; ``pending`` are begun and not over, ``logs`` are
    logarithms of times in µs, also of trials that were pruned; ``failed`` is a set in the order of failing. ``told``
    counts the trials that are over. The latest trial of a candidate counts.
    """

    def __init__(self, space: JointSpace) -> None:
        self.space = space
        self.untried = np.ones(len(space), dtype=bool)
        self.left = len(space)
        self.pending: dict[int, None] = {}
        self.logs: dict[int, float] = {}
        self.failed: dict[int, None] = {}
        self.told = 0
        self._begun: dict[int, int] = {}
        self._over: set[int] = set()

    @property
    def best(self) -> float:
        """The smallest log time, infinity while there is none."""
        return min(self.logs.values(), default=math.inf)

    def follow(self, study: optuna.Study) -> None:
        """Take in what has become of the study's trials since the last time."""
        for trial in study.get_trials(deepcopy=False):
            if trial.number in self._over:
                continue
            if (number := self._begun.get(trial.number)) is None:
                number = self.space.number_of(trial.params or trial.system_attrs.get(_ENQUEUED, {}))
                if number is not None:
                    self._begun[trial.number] = number
                    self.begin(number)
            if trial.state.is_finished():
                self._over.add(trial.number)
                if number is not None:
                    self._end(number, trial)

    def begin(self, number: int) -> None:
        """Mark the candidate as being tried: it is not proposed any more."""
        self.left -= int(self.untried[number])
        self.untried[number] = False
        self.pending[number] = None

    def _end(self, number: int, trial: FrozenTrial) -> None:
        for known in (self.pending, self.logs, self.failed):
            known.pop(number, None)
        us = None if trial.state == TrialState.FAIL else trial.value
        if us is None or not 0 < us < math.inf:
            self.failed[number] = None
        else:
            self.logs[number] = math.log(us)
        self.told += 1

    def near_best(self, distance: int) -> list[int]:
        """Untried candidates at this L1 distance from one of the three fastest; some may be listed twice."""
        found: list[int] = []
        for centre in sorted(self.logs, key=lambda number: self.logs[number])[:_BEST_KEPT]:
            found += [number for number in self.space.near(centre, distance) if self.untried[number]]
        return found


def is_enqueued(trial: FrozenTrial) -> bool:
    """Whether the trial's parameters were given, so that no sampler is to choose them."""
    return _ENQUEUED in trial.system_attrs
