"""Searches that a landscape can be replayed with: each proposes one candidate at a time and takes in its time."""

from __future__ import annotations

import random
import warnings
from abc import ABC, abstractmethod

import optuna

from registry.dispatch.plans.plan import Candidate
from registry.tuner.planning.problems import ProblemPlan
from registry.tuner.search.proposals import Searcher
from registry.tuner.search.samplers.names import sampler_named
from registry.tuner.search.studies import Studies

_MOST_INVALID = 50


class Strategy(ABC):
    """A search of one problem. ``in_flight``: how many candidates it proposes before the time of the first is known."""

    in_flight = 1

    @abstractmethod
    def ask(self) -> Candidate | None:
        """The next candidate to try; None when there is nothing left."""

    @abstractmethod
    def tell(self, candidate: Candidate, time_us: float | None) -> None:
        """Take in the candidate's time in µs; None if it failed."""

    def wants(self, candidate: Candidate) -> bool:
        """Whether the search would learn from a candidate that it did not ask for."""
        return False

    @property
    def settled(self) -> bool:
        """Whether the search would stop now."""
        return False


class Ours(Strategy):
    """The tuner's search as the tuner uses it, with eight candidates in flight."""

    in_flight = 8

    def __init__(self, searcher: Searcher) -> None:
        self.searcher = searcher

    def ask(self) -> Candidate | None:
        return next(iter(self.searcher.ask(1)), None)

    def tell(self, candidate: Candidate, time_us: float | None) -> None:
        self.searcher.tell(candidate, time_us)

    def wants(self, candidate: Candidate) -> bool:
        return self.searcher.untried(candidate)

    @property
    def settled(self) -> bool:
        return self.searcher.settled


class Random(Strategy):
    """Every valid candidate once, in random order."""

    def __init__(self, plan: ProblemPlan, seed: int) -> None:
        self._left = _everything(plan)
        random.Random(seed).shuffle(self._left)

    def ask(self) -> Candidate | None:
        return self._left.pop() if self._left else None

    def tell(self, candidate: Candidate, time_us: float | None) -> None:
        """Do nothing: this search does not learn."""


class Exhaustive(Strategy):
    """Every valid candidate in the order of its domains, implementation by implementation."""

    def __init__(self, plan: ProblemPlan, seed: int) -> None:
        self._left = list(reversed(_everything(plan)))

    def ask(self) -> Candidate | None:
        return self._left.pop() if self._left else None

    def tell(self, candidate: Candidate, time_us: float | None) -> None:
        """Do nothing: this search does not learn."""


class Plain(Strategy):
    """An Optuna sampler as its users call it: duplicates are measured again, a failure is told as FAIL.

    A suggestion that breaks a constraint is told as FAIL, too, but costs no trial here, as it does a user.
    """

    def __init__(self, plan: ProblemPlan, sampler: optuna.samplers.BaseSampler) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = optuna.create_study(sampler=sampler)
        self._choices = {choice.implementation.name: choice for choice in plan.supported}
        self._spaces = {name: c.implementation.space(plan.problem, plan.device) for name, c in self._choices.items()}
        self._valid = {candidate.key for candidate in _everything(plan)}
        self._trial: optuna.Trial | None = None

    def ask(self) -> Candidate | None:
        for _ in range(_MOST_INVALID):
            trial = self._study.ask()
            name = trial.suggest_categorical("implementation", list(self._choices))
            config = {
                parameter: trial.suggest_categorical(f"{name}.{parameter}", list(values))
                for parameter, values in self._spaces[name].domains.items()
            }
            candidate = Candidate(self._choices[name].implementation, config)
            if candidate.key in self._valid:
                self._trial = trial
                return candidate
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return None

    def tell(self, candidate: Candidate, time_us: float | None) -> None:
        assert self._trial is not None
        if time_us is None:
            self._study.tell(self._trial, state=optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(self._trial, time_us)


def tpe(plan: ProblemPlan, seed: int) -> Strategy:
    """``TPESampler()``."""
    return Plain(plan, optuna.samplers.TPESampler(seed=seed))


def gp(plan: ProblemPlan, seed: int) -> Strategy:
    """``GPSampler()``, which samples conditional parameters at random."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return Plain(plan, optuna.samplers.GPSampler(seed=seed))


def ours(plan: ProblemPlan, seed: int) -> Strategy:
    """The default search, alone and without seeds. No space is tried whole, whatever its size."""
    return Ours(Searcher(plan, seed=seed, exhaust=0))


def tuners_tpe(plan: ProblemPlan, seed: int) -> Strategy:
    """``--sampler tpe``: TPE with the tuner's starts, no candidate twice, invalid suggestions snapped."""
    return Ours(Searcher(plan, seed=seed, exhaust=0, studies=Studies(sampler_named("tpe"))))


def _everything(plan: ProblemPlan) -> list[Candidate]:
    return [Candidate(choice.implementation, config) for choice in plan.supported for config in choice.configs]
