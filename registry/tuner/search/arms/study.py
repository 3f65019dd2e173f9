"""The Optuna study of one problem: TPE's suggestions, given all candidates that were tried or are being tried.

Parameters are categorical and conditional: the implementation first, its own parameters under it. TPE looks at the
order of the values only, so a failure is told as slower than anything: FAIL would teach it nothing.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import optuna

from ....problem import canonical_json
from ..joint_space import JointSpace

_FAILED = math.log(1e12)
_IMPLEMENTATION = "implementation"


class Study:
    """A study that is told of every candidate, and asked for some. Candidates are numbers of the joint space.

    ``startup`` is how many trials TPE wants before it models anything.
    """

    def __init__(self, space: JointSpace, seed: int, startup: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                multivariate=True, group=True, constant_liar=True, n_startup_trials=startup, seed=seed
            )
        self._study = optuna.create_study(sampler=sampler, direction="minimize")
        self._space = space
        self._running: dict[int, int] = {}
        # Optuna compares choices by ==, to which True is 1: a choice is the text of its value
        self._names = optuna.distributions.CategoricalDistribution(tuple(space.blocks))
        self._distributions = {
            name: {
                parameter: optuna.distributions.CategoricalDistribution(tuple(map(canonical_json, values)))
                for parameter, values in block.space.domains.items()
            }
            for name, block in space.blocks.items()
        }

    def started(self, number: int) -> None:
        """The candidate is being tried."""
        self._running[number] = self._add(number, None)

    def finished(self, number: int, log_us: float) -> None:
        """The candidate's log time, infinite when it failed; whether or not ``started`` was called."""
        value = min(log_us, _FAILED)
        trial = self._running.pop(number, None)
        if trial is None:
            self._add(number, value)
        else:
            self._study.tell(trial, value)

    def suggestion(self) -> tuple[str, list[int]]:
        """TPE's suggestion: an implementation and the places of its values, valid or not, tried or not.

        The study forgets the suggestion; a caller that follows it calls ``started``.
        """
        trial = self._study.ask()
        name = str(trial.suggest_categorical(_IMPLEMENTATION, list(self._names.choices)))
        places = [
            distribution.choices.index(trial.suggest_categorical(f"{name}.{parameter}", list(distribution.choices)))
            for parameter, distribution in self._distributions[name].items()
        ]
        self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return name, places

    def _add(self, number: int, value: float | None) -> int:
        block = self._space.block_of(number)
        own = self._distributions[block.name]
        places = block.places(number)
        parameters: dict[str, Any] = {_IMPLEMENTATION: block.name}
        distributions: dict[str, Any] = {_IMPLEMENTATION: self._names}
        for (parameter, distribution), place in zip(own.items(), places, strict=True):
            parameters[f"{block.name}.{parameter}"] = distribution.choices[int(place)]
            distributions[f"{block.name}.{parameter}"] = distribution
        state = optuna.trial.TrialState.RUNNING if value is None else optuna.trial.TrialState.COMPLETE
        trial = optuna.trial.create_trial(state=state, value=value, params=parameters, distributions=distributions)
        self._study.add_trial(trial)
        return len(self._study.get_trials(deepcopy=False)) - 1
