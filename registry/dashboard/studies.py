"""Optuna studies in memory, one per problem, rebuilt from stored trials.

A study is over the joint space that the search used: the implementation, and its parameters under its name. The value
is the median in µs. A candidate whose timing was ended early is PRUNED, a failed one is FAIL; status, message and other
fields are user attributes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from tuning_db import Store, Trial

from ..problem import canonical_json
from ..report import formats
from ..report.facts import Facts, ProblemFacts, Section
from ..tuner.search.parameters import IMPLEMENTATION, ParameterChoice, choices, distributions, parameter, state_of

Offered = Mapping[str, CategoricalDistribution]


def rebuild(facts: Facts, store: Store) -> optuna.storages.InMemoryStorage:
    """A storage with a study for every problem that has trials."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.InMemoryStorage()
    several = len({str(section.hardware) for section in facts.sections}) > 1
    names: set[str] = set()
    for section in facts.sections:
        for problem in section.problems:
            if problem.search.trials:
                name = _unique(_name(section, problem, several), names)
                _study(storage, name, problem, _trials(store, problem))
    return storage


def _name(section: Section, facts: ProblemFacts, several: bool) -> str:
    place = [formats.device(section.hardware)] if several else []
    regime = [section.regime] if section.regime != "cold" else []
    dims = {name: facts.problem.dims[name] for name in section.varying if name in facts.problem.dims}
    return ", ".join([f"{section.op} {formats.pairs(dims)}", *place, *regime])


def _unique(name: str, names: set[str]) -> str:
    """``name``, with a number appended if it is taken: GPUs of one name may differ in memory."""
    number, found = 2, name
    while found in names:
        found, number = f"{name} ({number})", number + 1
    names.add(found)
    return found


def _trials(store: Store, facts: ProblemFacts) -> list[Trial]:
    """The trials of a problem's search, oldest first: an import keeps instants, but not the order of rows."""
    found = store.trials(facts.problem, environment=facts.environment, protocol=facts.protocol)
    found.reverse()
    return sorted(found, key=lambda trial: trial.created)


def _study(storage: optuna.storages.InMemoryStorage, name: str, facts: ProblemFacts, trials: Sequence[Trial]) -> None:
    study = optuna.create_study(storage=storage, study_name=name, direction="minimize")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names(["median µs"])
    for key, value in _about(facts).items():
        study.set_user_attr(key, value)
    domains = _domains(trials)
    encoded = {
        parameter(implementation, name): dict(zip(map(canonical_json, values), choices(values), strict=True))
        for implementation, own in domains.items()
        for name, values in own.items()
    }
    offered = distributions(domains)
    study.add_trials(_frozen(number, trial, encoded, offered) for number, trial in enumerate(trials))


def _about(facts: ProblemFacts) -> Mapping[str, Any]:
    told: dict[str, Any] = {
        "op": facts.problem.op,
        **facts.problem.dims,
        "hardware": formats.device(facts.environment.hardware),
        **{name: str(version) for name, version in facts.environment.software.items()},
    }
    if facts.decision is not None:
        told["winner"] = f"{facts.decision.candidate.implementation} {formats.pairs(facts.decision.candidate.config)}"
        told["winner µs"] = facts.decision.median_us
        told["floor µs"] = facts.decision.floor_us
    return {name: value for name, value in told.items() if value is not None}


def _domains(trials: Iterable[Trial]) -> dict[str, dict[str, list[Any]]]:
    tried: dict[str, dict[str, dict[str, Any]]] = {}
    for trial in trials:
        own = tried.setdefault(trial.candidate.implementation, {})
        for name, value in trial.candidate.config.items():
            own.setdefault(name, {})[canonical_json(value)] = value
    return {
        implementation: {name: _ordered(list(values.values())) for name, values in tried[implementation].items()}
        for implementation in sorted(tried)
    }


def _ordered(values: Sequence[Any]) -> list[Any]:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return sorted(values, key=None if numbers else str)


def _frozen(
    number: int, trial: Trial, encoded: Mapping[str, Mapping[str, ParameterChoice]], offered: Offered
) -> FrozenTrial:
    candidate = trial.candidate
    parameters: dict[str, ParameterChoice] = {IMPLEMENTATION: candidate.implementation}
    for name, value in candidate.config.items():
        own = parameter(candidate.implementation, name)
        parameters[own] = encoded[own][canonical_json(value)]
    state = state_of(trial.status, trial.median_us, trial.censored)
    return FrozenTrial(
        number=number,
        trial_id=number,
        state=state,
        value=None if state == TrialState.FAIL else trial.median_us,
        datetime_start=trial.created - timedelta(seconds=_seconds(trial)),
        datetime_complete=trial.created,
        params=parameters,
        distributions={name: offered[name] for name in parameters},
        user_attrs=_attributes(trial),
        system_attrs={},
        intermediate_values={},
    )


def _seconds(trial: Trial) -> float:
    """The seconds that the trial took on the device; 0 where they are not stored."""
    steps = trial.details.get("seconds")
    taken = steps.values() if isinstance(steps, Mapping) else [steps]
    return sum(float(one) for one in taken if isinstance(one, int | float))


def _attributes(trial: Trial) -> dict[str, Any]:
    told = {
        "status": trial.status,
        "message": trial.message,
        "median µs": trial.median_us,
        "samples": len(trial.samples),
        "stopped by": trial.stop_reason,
        "uid": trial.uid,
    }
    return {name: value for name, value in told.items() if value not in {None, ""}}
