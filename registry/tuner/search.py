"""Which candidate to try next: an Optuna study over the joint space of one problem, deduplicated and finished locally.

The recipe (TPE proposals alternating with untried neighbours of the best, after defaults, seeds and a few random
points) was chosen by replaying measured landscapes; see docs/tuning.md.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import optuna

from ..dispatch.plan import Candidate
from ..space import Space
from .planning import ProblemPlan

_RANDOM_STARTS = 8
_BEST_KEPT = 3
_SEEDS_KEPT = 5
_FAILED_US = 1e12
"""A candidate that fails counts as slower than any that does not: FAIL would teach TPE nothing."""


@dataclass
class _Asked:
    candidate: Candidate
    trial: optuna.trial.Trial | None


class Searcher:
    """Proposes candidates of one problem, each at most once; the only user of Optuna.

    ``seeds`` are candidates worth an early try, best first (winners of neighbouring problems, a stale winner).
    A space of at most ``exhaust`` candidates is tried whole.
    """

    def __init__(self, plan: ProblemPlan, *, seeds: Sequence[Candidate] = (), exhaust: int = 64, seed: int = 0) -> None:
        self._choices = {choice.implementation.name: choice for choice in plan.supported}
        self._spaces = {
            name: choice.implementation.space(plan.problem, plan.device) for name, choice in self._choices.items()
        }
        self._untried = {
            candidate.key: candidate
            for choice in plan.supported
            for candidate in (Candidate(choice.implementation, config) for config in choice.configs)
        }
        self._random = random.Random(seed)
        self._asked: dict[str, _Asked] = {}
        self._times: dict[str, tuple[float, Candidate]] = {}
        self._turn = 0
        self._exhaust = len(self._untried) <= exhaust
        self._starts = iter(self._order_of_starts(plan, seeds))
        self._study = _study(seed)

    @property
    def size(self) -> int:
        """Candidates not proposed yet."""
        return len(self._untried)

    def ask(self, count: int) -> list[Candidate]:
        """Up to ``count`` candidates never proposed before; fewer, or none, when the space is exhausted."""
        found: list[Candidate] = []
        while len(found) < count and self._untried:
            candidate = self._next_start() or self._propose()
            found.append(candidate)
        return found

    def reserve(self, candidate: Candidate) -> None:
        """Do not propose this one: somebody else has it tried."""
        self._untried.pop(candidate.key, None)

    def tell(self, candidate: Candidate, median_us: float | None) -> None:
        """A candidate's time; None when it failed. What was not asked for is learnt too (a stored trial)."""
        if candidate.implementation.name not in self._choices:
            return
        self._untried.pop(candidate.key, None)
        asked = self._asked.pop(candidate.key, None) or _Asked(candidate, self._enqueue(candidate))
        if median_us is not None:
            self._times[candidate.key] = (median_us, candidate)
        if asked.trial is not None:
            self._study.tell(asked.trial, math.log(_FAILED_US if median_us is None else median_us))

    def _order_of_starts(self, plan: ProblemPlan, seeds: Sequence[Candidate]) -> Iterator[Candidate]:
        """Implementations without a space, defaults, seeds that differ, random points; all the rest when exhausting."""
        yield from sorted(plan.defaults(), key=lambda candidate: len(self._spaces[candidate.implementation.name]) > 1)
        chosen: list[Candidate] = []
        for seed in seeds:
            if len(chosen) < _SEEDS_KEPT and seed.key in self._untried and self._is_distinct(seed, chosen):
                chosen.append(seed)
        yield from chosen
        rest = list(self._untried.values())
        self._random.shuffle(rest)
        yield from rest if self._exhaust else rest[:_RANDOM_STARTS]

    def _is_distinct(self, seed: Candidate, chosen: Iterable[Candidate]) -> bool:
        space = self._spaces[seed.implementation.name]
        return all(
            other.implementation.name != seed.implementation.name or space.distance(other.config, seed.config) >= 2
            for other in chosen
        )

    def _next_start(self) -> Candidate | None:
        for candidate in self._starts:
            if candidate.key in self._untried:
                return self._take(candidate)
        return None

    def _propose(self) -> Candidate:
        self._turn += 1
        if self._turn % 2 == 0 and (neighbour := self._neighbour()) is not None:
            return self._take(neighbour)
        return self._suggest()

    def _take(self, candidate: Candidate) -> Candidate:
        del self._untried[candidate.key]
        self._asked[candidate.key] = _Asked(candidate, self._enqueue(candidate))
        return candidate

    def _suggest(self) -> Candidate:
        """What TPE suggests; if that is invalid or tried, the nearest untried of the same implementation instead."""
        trial = self._study.ask()
        name = self._categorical(trial, "implementation", list(self._choices))
        space = self._spaces[name]
        config = {
            parameter: self._categorical(trial, f"{name}.{parameter}", values)
            for parameter, values in space.domains.items()
        }
        candidate = Candidate(self._choices[name].implementation, config)
        if candidate.key in self._untried:
            del self._untried[candidate.key]
            self._asked[candidate.key] = _Asked(candidate, trial)
            return candidate
        self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return self._take(self._nearest_untried(name, space, config))

    def _nearest_untried(self, name: str, space: Space, config: dict[str, Any]) -> Candidate:
        same = [candidate for candidate in self._untried.values() if candidate.implementation.name == name]
        if not same:
            return self._random.choice(list(self._untried.values()))
        distances = [space.distance(candidate.config, config) for candidate in same]
        nearest = min(distances)
        return self._random.choice([c for c, distance in zip(same, distances, strict=True) if distance == nearest])

    def _neighbour(self) -> Candidate | None:
        """A random untried neighbour, at distance 1 or else 2, of one of the best three."""
        best = [candidate for _, candidate in sorted(self._times.values(), key=lambda entry: entry[0])[:_BEST_KEPT]]
        for radius in (1, 2):
            near = [
                candidate
                for centre in best
                for candidate in self._untried.values()
                if candidate.implementation.name == centre.implementation.name
                and self._spaces[centre.implementation.name].distance(centre.config, candidate.config) == radius
            ]
            if near:
                return self._random.choice(near)
        return None

    def _enqueue(self, candidate: Candidate) -> optuna.trial.Trial | None:
        """A study trial with exactly this candidate's parameters, so that the study knows what others proposed.

        None where everything is going to be tried: nobody will ask the study.
        """
        if self._exhaust:
            return None
        name = candidate.implementation.name
        parameters = {"implementation": name} | {
            f"{name}.{parameter}": value for parameter, value in candidate.config.items()
        }
        self._study.enqueue_trial(parameters)
        trial = self._study.ask()
        self._categorical(trial, "implementation", list(self._choices))
        for parameter, values in self._spaces[name].domains.items():
            self._categorical(trial, f"{name}.{parameter}", values)
        return trial

    @staticmethod
    def _categorical(trial: optuna.trial.Trial, name: str, values: Sequence[Any]) -> Any:
        return trial.suggest_categorical(name, list(values))


def _study(seed: int) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            multivariate=True, group=True, constant_liar=True, n_startup_trials=_RANDOM_STARTS, seed=seed
        )
    return optuna.create_study(sampler=sampler, direction="minimize")
