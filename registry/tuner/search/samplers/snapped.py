"""Adapts any Optuna sampler to a joint space: proposes the valid, untried candidate nearest to its suggestion."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from ....space import Space
from ..joint_space import JointSpace
from ..parameters import IMPLEMENTATION, parameter
from .distinct import DistinctSampler


class SnappedSampler(DistinctSampler):
    """Proposes what ``sampler`` suggests, or a nearest untried candidate if that is invalid or tried.

    The study holds the candidate that was tried, so that ``sampler`` learns from it and not from its own suggestion.
    """

    def __init__(
        self,
        space: JointSpace | Mapping[str, Space],
        sampler: BaseSampler,
        *,
        starts: Iterable[int] | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(space, starts=starts, seed=seed)
        self._sampler = sampler

    def propose(self, study: optuna.Study, trial: FrozenTrial) -> int | None:
        name, places = self._suggestion(study, trial)
        block = self.space.blocks[name]
        untried = np.flatnonzero(self.tried.untried[block.start : block.stop])
        if not len(untried):
            return None
        distances = self.space.distances(block, places)[untried]
        return block.start + int(self.random.choice(untried[distances == distances.min()]))

    def _suggestion(self, study: optuna.Study, trial: FrozenTrial) -> tuple[str, list[int]]:
        trial = copy.copy(trial)  # parameters are suggested one after the other, each with those before it in the trial
        trial.params, trial.distributions = {}, {}
        inferred = self._sampler.infer_relative_search_space(study, trial)
        relative = self._sampler.sample_relative(study, trial, inferred)

        def suggested(name: str) -> Any:
            distribution = self.space.distributions[name]
            if distribution.single():
                value = distribution.choices[0]
            elif name in relative:
                value = relative[name]
            else:
                value = self._sampler.sample_independent(study, trial, name, distribution)
            trial.params, trial.distributions = (
                {**trial.params, name: value},
                {**trial.distributions, name: distribution},
            )
            return value

        implementation = suggested(IMPLEMENTATION)
        names = [parameter(implementation, name) for name in self.space.blocks[implementation].space.domains]
        return implementation, [self.space.distributions[name].choices.index(suggested(name)) for name in names]

    def reseed_rng(self) -> None:
        """Seed all random numbers anew, the sampler's own among them."""
        super().reseed_rng()
        self._sampler.reseed_rng()

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        self._sampler.before_trial(study, trial)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Call the sampler's own ``after_trial``; end ``study.optimize`` when all candidates are tried."""
        self._sampler.after_trial(study, trial, state, values)
        super().after_trial(study, trial, state, values)
