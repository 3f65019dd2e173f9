"""Any study of Optuna's with a sampler of ours tries valid candidates, each once, and ends when all are tried."""

from __future__ import annotations

from collections.abc import Callable

import optuna
import pytest
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from registry.space import Space
from registry.tuner.search.samplers import DistinctSampler, RegistrySampler, SnappedSampler
from registry.tuner.search.samplers.names import tpe

AXIS = [1, 2, 4, 8, 16]
SPACES = {
    "acme.tiles": Space(a=AXIS, b=AXIS).require("a * b fits", lambda config: config["a"] * config["b"] <= 64),
    "acme.rows": Space(warps=[1, 2, 4], vector=[True, False]),
}
SIZE = sum(map(len, SPACES.values()))
OTHERS: dict[str, Callable[[], BaseSampler]] = {
    "tpe": lambda: optuna.samplers.TPESampler(seed=0),
    "the tuner's tpe": lambda: tpe(0),
    "random": lambda: optuna.samplers.RandomSampler(seed=0),
    "nsgaii": lambda: optuna.samplers.NSGAIISampler(population_size=8, seed=0),
    "brute force": lambda: optuna.samplers.BruteForceSampler(seed=0),
}


def time_us(name: str, config: dict[str, int]) -> float:
    return 40.0 + config["warps"] if name == "acme.rows" else 10.0 + abs(config["a"] - 8) + abs(config["b"] - 2)


def tried(study: optuna.Study) -> list[dict[str, object]]:
    return [trial.params for trial in study.get_trials(deepcopy=False)]


def optimized(sampler: DistinctSampler, trials: int, jobs: int = 1) -> optuna.Study:
    study = optuna.create_study(sampler=sampler)
    study.optimize(lambda trial: time_us(*sampler.space.suggest(trial)), n_trials=trials, n_jobs=jobs)
    return study


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("name", OTHERS)
def test_whatever_sampler_is_snapped_tries_everything_once_and_stops(name: str) -> None:
    study = optimized(SnappedSampler(SPACES, OTHERS[name](), seed=0), 10 * SIZE)
    assert len(study.trials) == len({str(sorted(params.items())) for params in tried(study)}) == SIZE
    assert study.best_value == 10.0


def test_the_own_sampler_finds_the_best_in_fewer_trials_than_there_are_candidates() -> None:
    found = [optimized(RegistrySampler(SPACES, seed=seed), SIZE // 2).best_value for seed in range(5)]
    assert sorted(found)[3] == 10.0


def test_trials_in_several_threads_are_distinct() -> None:
    study = optimized(RegistrySampler(SPACES, seed=0), 10 * SIZE, jobs=4)
    assert len(study.get_trials(states=(TrialState.COMPLETE,))) == SIZE


def test_one_seed_gives_one_search_and_another_another() -> None:
    once, again, other = (tried(optimized(RegistrySampler(SPACES, seed=seed), 15)) for seed in (1, 1, 2))
    assert once == again != other


def test_starts_come_first_and_what_was_enqueued_before_them() -> None:
    sampler = RegistrySampler(SPACES, starts=[3, 3, 5], seed=0)
    study = optuna.create_study(sampler=sampler)
    study.enqueue_trial(sampler.space.parameters(7))
    study.enqueue_trial(sampler.space.parameters(5))
    study.optimize(lambda trial: time_us(*sampler.space.suggest(trial)), n_trials=5)
    numbers = [sampler.space.number_of(params) for params in tried(study)]
    assert numbers[:3] == [7, 5, 3]
    assert len(set(numbers)) == 5


def test_a_study_that_went_on_elsewhere_is_taken_up_where_it_stands() -> None:
    study = optimized(RegistrySampler(SPACES, seed=0), 12)
    study.sampler = other = RegistrySampler(SPACES, seed=1)
    study.optimize(lambda trial: time_us(*other.space.suggest(trial)), n_trials=12)
    assert len({str(sorted(params.items())) for params in tried(study)}) == 24


def test_when_all_is_tried_a_further_trial_is_pruned() -> None:
    sampler = RegistrySampler(SPACES, seed=0)
    study = optimized(sampler, 10 * SIZE)
    with pytest.raises(optuna.TrialPruned, match=f"all {SIZE} candidates"):
        sampler.space.suggest(study.ask())


def test_a_parameter_of_the_objectives_own_is_sampled_beside_the_candidate() -> None:
    sampler = RegistrySampler(SPACES, seed=0)
    study = optuna.create_study(sampler=sampler)

    def objective(trial: optuna.Trial) -> float:
        return time_us(*sampler.space.suggest(trial)) + trial.suggest_float("slack", 0.0, 0.5)

    study.optimize(objective, n_trials=12)
    assert len({trial.params["slack"] for trial in study.trials}) == 12


def test_failed_and_pruned_trials_are_not_repeated_and_a_failure_is_no_time() -> None:
    sampler = RegistrySampler(SPACES, seed=0)
    study = optuna.create_study(sampler=sampler)
    failing, pruned, right = (study.ask() for _ in range(3))
    numbers = [sampler.space.number(*sampler.space.suggest(trial)) for trial in (failing, pruned, right)]
    study.tell(failing, state=TrialState.FAIL)
    pruned.report(90.0, step=0)
    study.tell(pruned, state=TrialState.PRUNED)
    study.tell(right, 12.0)
    study.optimize(lambda trial: time_us(*sampler.space.suggest(trial)), n_trials=SIZE - 3)
    assert list(sampler.tried.failed) == numbers[:1]
    assert numbers[1] in sampler.tried.logs
    assert len(study.trials) == SIZE
