"""The rule for an op's default: fitted to what was decided, and asked only where it is better than what is declared."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from registry import Config, Device, Implementation, Problem, Space, shipped
from registry.artifact import Built
from registry.contracts import SOFTMAX
from registry.discovery.catalog import Catalog
from registry.dispatch.resolve.learnt import Leaf, Split
from registry.implementation import Run
from registry.tuner.decide.learning import DECLARED, fit, held_out, learnt_by, samples_of
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.storing import RunStore
from tuning_db import CandidateKey, Decision, Environment, Interval, ProblemKey, Protocol, Store

CPU = Device.of("cpu")
ROOT = Path(__file__).parents[3]


class Declares(Implementation):
    """Nothing but what it declares."""

    op = "softmax"
    device_types = frozenset({"cpu"})

    def __init__(self, name: str, preference: float = -1.0, *, transfers: bool = True, most: int = 2**40) -> None:
        self.name, self._preference, self.transfers, self._most = name, preference, transfers, most

    def preference(self, problem: Problem, device: Device) -> float:
        return self._preference

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        if problem.cols > self._most:
            yield "too wide"

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(block=[1, 2, 4, 8])

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        raise AssertionError("fitting runs nothing")


def decided(
    times: Mapping[str, float], rows: int, cols: int = 64, *, default: float | None = None, block: int = 1
) -> Decision:
    """A decision after finals in which implementations took these times."""
    winner = min(times, key=lambda name: times[name])
    best = times[winner]
    return Decision(
        problem=ProblemKey(
            "softmax", SOFTMAX.version, {"rows": rows, "cols": cols, "dtype": "float32"}, ("cols", "dtype")
        ),
        environment=Environment(CPU.hardware(), CPU.software()),
        protocol=Protocol("cold"),
        candidate=CandidateKey(winner, "1", {"block": block}),
        median_us=best,
        baselines={name: us / best for name, us in times.items() if name != winner},
        default_ratio=None if default is None else Interval(default / best, default / best, default / best),
    )


ALL = [Declares("a.declared", 1.0), Declares("a.few"), Declares("a.many"), Declares("a.fixed", transfers=False)]


def by_rows(rows: int, noise: random.Random) -> dict[str, float]:
    """``a.few`` is twice as fast as what is declared up to 100 rows, ``a.many`` above."""
    times = {"a.declared": 20.0, "a.few": 10.0 if rows <= 100 else 40.0, "a.many": 40.0 if rows <= 100 else 10.0}
    return {name: us * noise.uniform(0.95, 1.05) for name, us in times.items()} | {"a.fixed": 5.0}


def test_a_question_is_asked_where_its_answer_decides() -> None:
    noise = random.Random(1)
    decisions = [
        decided(by_rows(rows, noise), rows, default=20.0) for rows in (1, 2, 4, 8, 30, 64, 200, 300, 999, 5000)
    ]
    rule = fit(SOFTMAX, decisions, ALL, CPU, "here")
    assert rule is not None
    assert isinstance(rule.tree, Split)
    assert rule.tree.dim == "rows"
    assert 64 < float(rule.tree.bound) < 200
    assert [next(iter(rule.rank({"rows": rows, "cols": 1, "dtype": "x"}))) for rows in (3, 4000)] == ["a.few", "a.many"]
    assert "a.fixed" not in str(rule.plain())
    learnt, declared = held_out(SOFTMAX, samples_of(SOFTMAX, decisions, ALL, CPU))
    assert learnt < declared


def test_what_is_declared_stays_where_nothing_was_faster() -> None:
    times = {"a.declared": 10.0, "a.few": 10.1, "a.many": 30.0}
    rule = fit(SOFTMAX, [decided(times, rows, default=10.0) for rows in range(1, 20)], ALL, CPU)
    assert rule is not None
    assert rule.tree == Leaf((), 19)


def test_a_rule_that_holds_for_no_problem_but_its_own_is_dropped() -> None:
    noise = random.Random(3)
    decisions = []
    for rows in range(1, 31):
        times = {
            "a.declared": 10.0,
            "a.few": 10.0 * noise.choice([0.5, 2.5]),
            "a.many": 10.0 * noise.choice([0.5, 2.5]),
        }
        decisions.append(decided(times, rows, default=10.0))
    rule = fit(SOFTMAX, decisions, ALL, CPU)
    assert rule is not None
    assert rule.tree == Leaf((), 30)


def test_a_default_that_was_timed_counts_by_its_own_time() -> None:
    decisions = [decided({"a.declared": 10.0, "a.few": 12.0}, rows, default=30.0) for rows in range(1, 9)]
    (sample, *_) = samples_of(SOFTMAX, decisions, ALL, CPU)
    assert sample.losses["a.declared"] == sample.losses[DECLARED] == pytest.approx(math.log(3.0))
    # defaults took three times as long as the best configuration: so does that of an implementation never timed untuned
    assert sample.losses["a.few"] == pytest.approx(math.log(1.2) + math.log(3.0))


def test_what_cannot_run_a_problem_has_the_worst_time_there() -> None:
    narrow = [Declares("a.declared", 1.0), Declares("a.few", most=100)]
    wide = [decided({"a.declared": 20.0}, rows, cols=4096, default=20.0) for rows in range(1, 9)]
    rule = fit(SOFTMAX, wide, narrow, CPU)
    assert rule is not None
    assert rule.tree == Leaf((), 8)


def test_few_problems_make_no_rule() -> None:
    decisions = [decided({"a.declared": 20.0, "a.few": 1.0}, rows, default=20.0) for rows in range(1, 6)]
    assert fit(SOFTMAX, decisions, ALL, CPU) is None
    assert fit(SOFTMAX, [], ALL, CPU) is None


def test_configurations_are_kept_where_they_beat_an_implementations_own_default() -> None:
    times = {"a.few": 10.0, "a.declared": 20.0}
    good = [decided(times, rows, cols, default=20.0, block=4) for rows in (1, 8) for cols in (64, 128, 256, 512)]
    rule = fit(SOFTMAX, good, ALL, CPU)
    assert rule is not None
    assert [known.config for known in rule.configs["a.few"]] == [{"block": 4}]
    assert rule.config("a.few", {"rows": 3, "cols": 999, "dtype": "float32"}) == {"block": 4}
    own = [decided(times, rows, cols, default=20.0, block=1) for rows in (1, 8) for cols in (64, 128, 256, 512)]
    same = fit(SOFTMAX, own, ALL, CPU)
    assert same is not None
    assert not same.configs


def test_a_run_learns_its_ops_anew_and_keeps_the_others(store: Store) -> None:
    catalog = Catalog(entry_points=())
    for one in ALL[:3]:
        catalog.register(one)
    runs = RunStore(store, CPU, TimingProtocol.of(CPU, "cold"), {})
    runs.end({"learnt_defaults": {"gelu": {"version": 1}, "softmax": {"version": 0}}})
    noise = random.Random(2)
    for rows in (1, 2, 4, 8, 30, 64, 200, 300, 999, 5000):
        store.publish(runs.run, decided(by_rows(rows, noise), rows, default=20.0))
    found = learnt_by(RunStore(store, CPU, TimingProtocol.of(CPU, "cold"), {}), [SOFTMAX], catalog, CPU)
    assert found["gelu"] == {"version": 1}
    assert found["softmax"]["tree"]["dim"] == "rows"


@pytest.mark.parametrize("file", ["registry/shipped/nvidia-h200.jsonl", "benchmarks/results/cpu/winners.jsonl"])
@pytest.mark.few(1)
def test_shipped_rules_are_those_that_the_winners_of_each_hardware_teach(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.learnt_defaults import by_hardware, device_of, rules, winners

    monkeypatch.delenv("KERNEL_REGISTRY_SHIPPED")
    monkeypatch.setattr("benchmarks.learnt_defaults.held_out", lambda *_: (0.0, 0.0))  # what the table tells beside
    shipped.forget()
    for decisions in by_hardware(winners(ROOT / file)):
        here = decisions[0].environment.hardware
        fitted, _ = rules(decisions, device_of(here, "h200"), Catalog())
        assert fitted
        for op, rule in fitted.items():
            found = shipped.learnt(here, op)
            assert found is not None
            assert found[0] == rule, "python -m benchmarks.learnt_defaults --write registry/shipped/defaults.json"
            assert found[1] == here["name"]
