"""A problem's search ends at its budget or where it has settled, and learns what other problems paid for."""

from __future__ import annotations

import pytest

from registry.artifact import Artifact, Built, Signature, Variant
from registry.contracts import SOFTMAX
from registry.device import Device
from registry.dispatch.plans.plan import Candidate
from registry.implementation import Implementation, Run
from registry.problem import Problem
from registry.space import Config, Space
from registry.tuner.limits import DEFAULT_TRIALS, Budget
from registry.tuner.planning.problems import ImplementationPlan, ProblemPlan
from registry.tuner.search.findings import Finding, Findings
from registry.tuner.search.state import SearchState
from registry.tuner.search.waiting import Waiting

PROBLEM = Problem("softmax", {"rows": 64, "cols": 256, "dtype": "float32"})


class Bowl(Implementation):
    op = "softmax"
    name = "acme.bowl"
    device_types = frozenset({"cpu"})

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(a=range(10), b=range(10))

    def variants(self, problem: Problem, config: Config, device: Device, signature: Signature) -> tuple[Variant, ...]:
        return (Variant("none", "bowl", dict(config)),)

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        raise AssertionError("never run here")


def a_search(budget: Budget) -> SearchState:
    bowl, device = Bowl(), Device.of("cpu")
    choice = ImplementationPlan(bowl, bowl.space(PROBLEM, device), bowl.default(PROBLEM, device))
    return SearchState(ProblemPlan(PROBLEM, SOFTMAX, device, (choice,)), budget, (), 0)


def time_of(config: Config) -> float:
    return 10.0 + float(abs(config["a"] - 6) + abs(config["b"] - 3))


def right(candidate: Candidate, us: float, uid: str) -> Finding:
    return Finding(candidate, "ok", us, False, uid)


def finish(search: SearchState) -> None:
    while not search.over:
        search.ask(8)
        for waiting in list(search.waiting):
            search.learn(right(waiting.candidate, time_of(waiting.candidate.config), waiting.candidate.key))


def test_without_a_number_of_trials_it_ends_where_it_has_settled() -> None:
    search = a_search(Budget())
    finish(search)
    assert search.settled
    assert search.done < DEFAULT_TRIALS
    assert search.findings.best_us == 10.0


def test_as_many_trials_as_were_asked_for() -> None:
    search = a_search(Budget(trials=70))
    finish(search)
    assert search.done == 70


def test_more_trials_than_candidates_try_everything() -> None:
    search = a_search(Budget(trials=1000))
    finish(search)
    assert search.done == 100


def test_the_fault_of_a_candidates_last_trial_is_known() -> None:
    search, tried = a_search(Budget(trials=5)), Candidate(Bowl(), {"a": 6, "b": 3})
    assert search.findings.fault_of(tried) == ""
    search.learn_stored(Finding(tried, "timeout", None, False, "first"))
    assert search.findings.fault_of(tried) == "timeout"
    search.learn(right(tried, 10.0, "second"))
    assert search.findings.fault_of(tried) == ""


def test_what_another_problem_paid_for_is_learnt_and_costs_no_trial() -> None:
    search = a_search(Budget(trials=5))
    best = Candidate(Bowl(), {"a": 6, "b": 3})
    assert search.wants(best)
    search.learn(right(best, 10.0, "uid"), asked=False)
    assert (search.done, search.findings.best_us) == (0, 10.0)
    finish(search)
    assert search.done == 5
    assert search.findings.ranked()[0].key == best.key


def test_a_built_variant_serves_who_could_use_the_same_and_has_not_tried_it() -> None:
    one, other = a_search(Budget()), a_search(Budget())
    (built,) = one.ask(1)
    served = other.serve(built)
    assert served is not None
    assert served.candidate.key == built.candidate.key
    assert other.serve(built) is None
    assert other.serve(Waiting(built.candidate)) is None
    assert built.candidate.key not in {waiting.candidate.key for waiting in other.ask(8)}


def test_what_a_settled_search_still_has_in_the_queue_is_wanted_no_more() -> None:
    search = a_search(Budget())
    finish(search)
    bowl = search.plan.choices[0].implementation
    untried = next(
        candidate
        for candidate in (Candidate(bowl, config) for config in search.plan.choices[0].configs)
        if not search.findings.knows(candidate)
    )
    search.waiting.append(Waiting(untried))
    assert search.is_moot(untried)
    search.drop_moot()
    assert search.over


def test_a_search_that_is_over_leaves_no_trial_of_its_study_running() -> None:
    search = a_search(Budget())
    dropped = search.ask(8)[0].candidate
    search.waiting = [waiting for waiting in search.waiting if waiting.candidate.key != dropped.key]
    finish(search)
    search.close()
    trials = search.study.trials
    assert all(trial.state.is_finished() for trial in trials)
    assert [trial.user_attrs["status"] for trial in trials].count("dropped") == 1


def test_before_it_has_settled_everything_asked_for_is_wanted() -> None:
    search = a_search(Budget())
    asked = search.ask(4)
    assert not any(search.is_moot(waiting.candidate) for waiting in asked)
    first = asked[0].candidate
    search.learn_stored(right(first, 12.0, "another run's"))
    assert search.is_moot(first)


def test_an_implementation_of_which_nothing_is_measured_yet_is_waited_for() -> None:
    search = a_search(Budget())
    finish(search)

    class Slow(Bowl):
        name = "acme.slow"

    assert not search.is_moot(Candidate(Slow(), {"a": 0, "b": 0}))


def test_who_may_enter_the_finals_and_was_measured_by_an_earlier_run_must_be_built() -> None:
    search = a_search(Budget())
    for waiting in search.ask(3):
        search.learn_stored(right(waiting.candidate, time_of(waiting.candidate.config), waiting.candidate.key))
    unbuilt = {waiting.candidate.key for waiting in search.unbuilt()}
    assert unbuilt == {candidate.key for candidate in search.findings.ranked()}
    search.findings.remember(search.findings.ranked()[0], ())
    assert search.findings.ranked()[0].key not in {waiting.candidate.key for waiting in search.unbuilt()}


def test_a_default_is_tried_however_settled_the_search() -> None:
    search = a_search(Budget())
    default = search.plan.defaults()[0]
    finish(search)
    assert search.findings.must_try(default)
    search.waiting.append(Waiting(default))
    assert search.is_moot(default)  # it is known
    other = a_search(Budget())
    assert not other.is_moot(other.plan.defaults()[0])


def test_what_waits_when_the_budget_is_spent_is_wanted_no_more_but_for_the_default() -> None:
    search = a_search(Budget(seconds=5.0))
    search.ask(8)
    default = search.plan.defaults()[0].key
    assert default in {waiting.candidate.key for waiting in search.waiting}
    search.seconds = 5.5
    search.drop_moot()
    assert [waiting.candidate.key for waiting in search.waiting] == [default]
    (waiting,) = search.waiting
    search.learn(right(waiting.candidate, 10.0, "uid"))
    assert search.over


def test_what_kernels_take_is_the_most_of_each_resource() -> None:
    search = a_search(Budget(trials=4))
    candidate = next(iter(search.plan.defaults()))
    assert search.findings.resources(candidate) == {}
    one, other = ({"registers": 40, "spill_bytes": 0}, {"registers": 32, "spill_bytes": 8, "threads": 128})
    artifacts = tuple(Artifact(Variant("none", "bowl", {}), "", resources=each) for each in (one, other))
    search.findings.remember(candidate, artifacts)
    assert search.findings.resources(candidate) == {"registers": 40, "spill_bytes": 8, "threads": 128}


class PlainBowl(Bowl):
    name = "torch.native"

    def space(self, problem: Problem, device: Device) -> Space:
        return Space()


def test_one_alone_of_several_implementations_decides_nothing() -> None:
    bowl, plain, device = Bowl(), PlainBowl(), Device.of("cpu")
    baseline = ImplementationPlan(plain, plain.space(PROBLEM, device), {})
    other = ImplementationPlan(bowl, bowl.space(PROBLEM, device), bowl.default(PROBLEM, device))
    first, second = right(Candidate(plain, {}), 30.0, "1"), right(Candidate(bowl, {"a": 1, "b": 2}), 40.0, "2")
    for choices, told, decides in (
        ((baseline, other), (), False),
        ((baseline, other), (first,), False),
        ((baseline, other), (second,), False),
        ((baseline, other), (first, second), True),
        ((baseline, other), (first, Finding(second.candidate, "wrong_result", None, False, "3")), True),
        ((baseline,), (first,), True),
    ):
        findings = Findings(ProblemPlan(PROBLEM, SOFTMAX, device, choices), 0)
        for each in told:
            findings.learn(each)
        assert findings.decides is decides


def test_nothing_is_decided_before_the_default_or_a_winner_that_beat_it_was_tried() -> None:
    bowl, plain, device = Bowl(), PlainBowl(), Device.of("cpu")
    default = bowl.default(PROBLEM, device)
    choices = (
        ImplementationPlan(plain, plain.space(PROBLEM, device), {}),
        ImplementationPlan(bowl, bowl.space(PROBLEM, device), default, preference=2.0),
    )
    other = Candidate(bowl, {"a": 1, "b": 2})
    assert other.config != default
    findings = Findings(ProblemPlan(PROBLEM, SOFTMAX, device, choices), 0)
    findings.learn(right(Candidate(plain, {}), 30.0, "1"))
    findings.learn(right(other, 20.0, "2"))
    assert not findings.decides
    findings.stored = other
    assert findings.decides
    findings.stored = None
    findings.learn(Finding(Candidate(bowl, default), "compile_error", None, False, "3"))
    assert findings.decides


def test_a_fresh_process_makes_inputs_once_and_each_entrant_takes_as_long_as_a_later_trial() -> None:
    findings = a_search(Budget()).findings
    assert findings.setup_seconds(5, 3) == 0.0
    findings.took({"load": 0.5, "verify": 2.5, "measure": 1.0})
    part = 2 / (2 + len(SOFTMAX.kinds))
    alone = "what one trial took tells nothing of others, which find the inputs made"
    assert findings.setup_seconds(5, 1) == pytest.approx(0.5 + part * 2.5), alone
    for verify in (0.1, 0.2, 9.0):
        findings.took({"load": 0.1, "verify": verify})
    findings.took({"verify": 50.0})
    of_block = 0.5 + 5 * 0.1 + part * (2.5 + 5 * 0.2)
    assert findings.setup_seconds(5, 1) == pytest.approx(of_block)
    assert findings.setup_seconds(5, 3) == pytest.approx(3 * of_block)


def test_entrants_of_a_large_problem_are_verified_in_one_block() -> None:
    large = Problem("softmax", {"rows": 8192, "cols": 8192, "dtype": "float32"})
    findings = Findings(ProblemPlan(large, SOFTMAX, Device.of("cpu"), ()), 0)
    findings.took({"load": 0.5, "verify": 5.0})
    assert findings.setup_seconds(5, 3) == pytest.approx(3 * 0.5 + 2 / (2 + len(SOFTMAX.kinds)) * 5.0)
