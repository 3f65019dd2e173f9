"""The interface of a search: an Optuna sampler whose suggestions are valid candidates, each at most once."""

from __future__ import annotations

import collections
import contextlib
import math
import random
import threading
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from ....space import Space
from ..joint_space import JointSpace
from ..tried import Tried, is_enqueued

_RANDOM_STARTS = 8


class DistinctSampler(BaseSampler):
    """Samples the candidates of a joint space: first ``starts``, then what ``propose`` chooses, none of them twice.

    ``space``: a JointSpace, or a space for each implementation's name. ``starts``: numbers of candidates, None for
    eight random ones. An objective takes its candidate from ``sampler.space.suggest(trial)`` and returns its time in
    µs. Any number of trials may run at once; parameters that were enqueued count as tried, and when all candidates are,
    the study stops. ``tried`` holds what became of each candidate.
    """

    expected_gain = math.inf
    """The gain in log time that the sampler expects of its latest proposal; infinite where it has no opinion."""

    def __init__(
        self, space: JointSpace | Mapping[str, Space], *, starts: Iterable[int] | None = None, seed: int | None = None
    ) -> None:
        self.space = space if isinstance(space, JointSpace) else JointSpace(space)
        self.tried = Tried(self.space)
        self.proposed = 0
        self.random = random.Random(seed)
        if starts is None:
            starts = self.random.sample(range(len(self.space)), min(_RANDOM_STARTS, len(self.space)))
        self._starts = collections.deque(starts)
        self._others = RandomSampler(seed)
        self._lock = threading.Lock()

    @abstractmethod
    def propose(self, study: optuna.Study, trial: FrozenTrial) -> int | None:
        """The number of an untried candidate, of which there is at least one; None takes a random one."""

    @property
    def starting(self) -> bool:
        """Whether some start is not sampled yet."""
        return any(self.tried.untried[number] for number in self._starts)

    def reseed_rng(self) -> None:
        """Seed all random numbers anew, as Optuna asks for before trials run in parallel."""
        self.random.seed()
        self._others.reseed_rng()

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All parameters of all implementations; a trial uses its implementation's."""
        return dict(self.space.distributions)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The parameters of an untried candidate; none for an enqueued trial, and where all candidates are tried."""
        if is_enqueued(trial):
            return {}
        with self._lock:
            self.tried.follow(study)
            if not self.tried.left:
                return {}
            number = self._next_start()
            if number is None:
                self.proposed += 1
                number = self.propose(study, trial)
            if number is None:
                number = int(self.random.choice(np.flatnonzero(self.tried.untried)))
            self.tried.begin(number)
        return self.space.parameters(number)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """A random value of a parameter that is not of the joint space. Raises TrialPruned when all is tried."""
        if param_name in self.space.distributions and not self.tried.left:
            raise optuna.TrialPruned(f"all {len(self.space)} candidates are tried")
        return self._others.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """End ``study.optimize`` when all candidates are tried; a caller of ask and tell has no such loop."""
        if not self.tried.left:
            with contextlib.suppress(RuntimeError):
                study.stop()

    def _next_start(self) -> int | None:
        while self._starts:
            number = self._starts.popleft()
            if self.tried.untried[number]:
                return number
        return None
