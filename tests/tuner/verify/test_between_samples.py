"""Between samples inputs and outputs change, and some samples are judged on the inputs whose reference is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch

from registry.contracts import ATTENTION_DECODE, SQUARE, VECTOR_ADD
from registry.dispatch.plans.plan import Candidate, build
from registry.tuner.measure.samplers import ClockSampler, Enqueue, Nothing, Sampler
from registry.tuner.measure.stack import Stack
from registry.tuner.verify.between_samples import _MOST
from registry.tuner.verify.renewed import Inputs
from registry.tuner.verify.session import Session
from registry.tuner.verify.timed import TimedPlan
from registry.tuner.verify.verify import WrongError

from ..going_through import CPU, PROTOCOL, Custom, timed_on


def session_of(n: int = 5001, regime: Literal["cold", "hot"] = "cold") -> Session:
    return Session(SQUARE, SQUARE.problem_of({"n": n, "dtype": "float32"}), CPU, replace(PROTOCOL, regime=regime), 7)


def timed_with(session: Session, function: Callable[..., Any]) -> tuple[TimedPlan, Sampler]:
    timed, sampler = timed_on(session, Custom(session.op.name, function), {})
    sampler.between = timed.between
    return timed, sampler


def test_a_launch_never_meets_the_inputs_and_the_output_that_it_left() -> None:
    session, met = session_of(), dict[int, list[torch.Tensor]]()
    again = list[bool]()

    def square(y: torch.Tensor, x: torch.Tensor) -> None:
        before = met.get(x.data_ptr())
        if before is not None:
            again.append(torch.equal(before[0], x) and torch.equal(before[1], y))
        torch.mul(x, x, out=y)
        met[x.data_ptr()] = [x.clone(), y.clone()]

    timed, _ = timed_with(session, square)
    # as many launches a sample however busy the machine is
    sampler = ClockSampler(timed.launches, PROTOCOL, first_us=PROTOCOL.sample_us / 40, warm=timed.warm)
    sampler.between = timed.between
    again.clear()
    sampler.take(20)
    # the first look may have launched on a copy before
    assert sum(again) <= 1
    assert len(again) > 100
    timed.between.settle()


@pytest.mark.parametrize("regime", ["cold", "hot"])
def test_what_is_launched_without_being_timed_is_of_no_use_to_what_is(regime: Literal["cold", "hot"]) -> None:
    session, round_of_calls = session_of(regime=regime), list[tuple[int, int]]()
    timed, _ = timed_with(session, lambda y, x: round_of_calls.append((x.data_ptr(), y.data_ptr())))
    sampler = ClockSampler(timed.launches, PROTOCOL, first_us=PROTOCOL.sample_us / 16, warm=timed.warm)
    sampler.between = timed.between
    for _ in range(20):
        round_of_calls.clear()
        sampler.take(1)
        warm = round_of_calls[0]
        calls = [call for call in round_of_calls if call != warm]
        assert len(calls) == 16
        # nor is the memory of another use
        assert warm[0] not in {x for x, _ in calls}
        assert warm[1] not in {y for _, y in calls}
        # no call comes twice in a round, and each round begins with one that is not timed
        rounds = round_of_calls.count(warm)
        assert len(set(calls)) * rounds == 16
        assert rounds == 1 or regime == "hot"


def test_nothing_but_launches_comes_between_the_warm_up_and_the_timed_launches() -> None:
    order = list[str]()

    class Ordered(Nothing):
        def __call__(self, copies: Sequence[int], *, last: bool = True) -> None:
            order.append("between")

        def ready(self) -> None:
            order.append("ready")

    launches: list[Enqueue] = [lambda: order.append("timed")] * 16
    sampler = ClockSampler(launches, PROTOCOL, first_us=PROTOCOL.sample_us / 16, warm=lambda: order.append("warm"))
    sampler.between = Ordered()
    sampler.take(1)
    assert order == ["between", "ready", "warm"] + ["timed"] * 16


def test_who_skips_while_it_is_timed_is_found_although_every_check_afterwards_finds_it_right() -> None:
    skips = False

    def square(y: torch.Tensor, x: torch.Tensor) -> None:
        if not skips:
            torch.mul(x, x, out=y)

    timed, sampler = timed_with(session_of(), square)
    sampler.take(3)
    timed.between.settle()
    skips = True
    sampler.take(20)
    skips = False
    with pytest.raises(WrongError, match="a sample left a wrong output"):
        timed.between.settle()


def test_work_that_another_thread_ends_after_the_clock_has_stopped_is_found_though_it_is_judged_right() -> None:
    late = list[tuple[torch.Tensor, torch.Tensor]]()

    def end() -> None:
        while late:
            x, y = late.pop()
            torch.mul(x, x, out=y)

    timed, sampler = timed_with(session_of(), lambda y, x: late.append((x, y)))
    between = timed.between
    judge = between._judge
    assert judge is not None
    # what a thread does as soon as judging lets it
    between._judge = lambda copies: end() or judge(copies)  # type: ignore[func-returns-value]
    sampler.take(40)
    with pytest.raises(WrongError, match="changed after its time: it was not ready when it was read"):
        between.settle()


class Returning(Custom):
    returns_outputs = True


@pytest.mark.parametrize("whole_rounds", [False, True])
@pytest.mark.parametrize("returned", [False, True])
@pytest.mark.few(2)
def test_a_part_that_each_launch_leaves_to_the_next_is_found(returned: bool, whole_rounds: bool) -> None:
    session, late = session_of(), list[tuple[torch.Tensor, torch.Tensor]]()

    def write(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        while late:
            before, there = late.pop()
            torch.mul(before, before, out=there)
        torch.mul(x[:4600], x[:4600], out=y[:4600])
        late.append((x[4600:4900], y[4600:4900]))
        torch.mul(x[4900:], x[4900:], out=y[4900:])
        return y

    kind = Returning("square", lambda x: write(torch.empty_like(x), x)) if returned else Custom("square", write)
    timed, sampler = timed_on(session, kind, {})
    if whole_rounds:
        # every copy comes again after as many launches, behind one on the copy that warms up
        assert len(timed.launches) == 16
        sampler = ClockSampler(timed.launches, PROTOCOL, first_us=PROTOCOL.sample_us / 32, warm=timed.warm)
    sampler.between, between = timed.between, timed.between
    judge = between._judge
    assert judge is not None

    # what waits for the next launch is there when the outputs are judged
    def judged(copies: Sequence[int]) -> Sequence[torch.Tensor]:
        write(torch.empty(5001), torch.empty(5001))
        return judge(copies)

    between._judge = judged
    sampler.take(100)
    with pytest.raises(WrongError, match="changed after its time: it was not ready when it was read"):
        between.settle()


def test_copies_that_only_the_end_of_timing_reaches_are_not_taken_for_late_work() -> None:
    timed, _ = timed_with(session_of(), lambda y, x: torch.mul(x, x, out=y))
    sampler = ClockSampler(timed.launches, PROTOCOL, first_us=2 * PROTOCOL.sample_us)
    sampler.between = timed.between
    timed.between._wait = 0  # the sample is judged
    sampler.take(1)
    sampler.cover()
    timed.between.settle()


def test_a_few_samples_are_judged_and_what_is_right_passes() -> None:
    session = session_of()
    timed, sampler = timed_with(session, lambda y, x: torch.mul(x, x, out=y))
    between, judged = timed.between, list[Sequence[int]]()
    judge = between._judge
    assert judge is not None
    between._judge = lambda copies: judged.append(copies) or judge(copies)  # type: ignore[func-returns-value]
    sampler.take(100)
    between.settle()
    assert len(judged) == _MOST
    assert {copy for copies in judged for copy in copies} <= set(range(len(timed.launches)))
    assert bool(session.rotation.unchanged(session.case("normal").pristine, [0])[0])


def test_without_a_reference_nothing_is_judged() -> None:
    session = session_of()
    timed = TimedPlan(timed_with(session, lambda y, x: None)[0]._plan, session, judged=False)
    for _ in range(100):
        timed.between(range(3))
    timed.between.settle()


def test_the_first_of_several_copies_may_be_the_only_one_that_is_launched_on() -> None:
    op = VECTOR_ADD
    session = Session(op, op.problem_of({"n": 300_001, "dtype": "float32"}), CPU, PROTOCOL, 7)
    timed, sampler = timed_with(session, lambda out, x, y: torch.add(x, y, out=out))
    for _ in range(60):
        for copy in range(len(timed.launches)):
            timed.between([copy])
            timed.launches[copy]()
    timed.between.settle()
    assert sampler.how == "perf_counter"


def test_both_samples_of_a_pair_come_after_writes_of_as_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    op = ATTENTION_DECODE
    problem = op.problem_of({
        "batch": 20, "heads": 4, "kv_heads": 2, "q_len": 1, "kv_len": 40, "head_dim": 16, "page": False, "span": False,
        "softcap": False, "kv_dtype": "auto", "lengths": "uniform", "dtype": "float32",
    })  # fmt: skip
    session = Session(op, problem, CPU, PROTOCOL, 7)
    implementation = Custom(op.name, lambda out, lse, *arguments: None)
    plan = build(op, Candidate(implementation, {}), problem, session.arguments, CPU)
    timed = TimedPlan(plan, session)
    timed.between._wait = 100  # no sample is judged
    timed.between(range(3))
    written = Counter[Stack]()
    write, write_moved = Stack.write, Stack.write_moved

    def counted(stack: Stack, value: torch.Tensor) -> None:
        written[stack] += stack.nbytes
        write(stack, value)

    def counted_moves(stack: Stack, value: torch.Tensor, steps: Mapping[int, int], mask: int = 0) -> None:
        written[stack] += value.nbytes * len(steps)
        write_moved(stack, value, steps, mask)

    monkeypatch.setattr(Stack, "write", counted)
    monkeypatch.setattr(Stack, "write_moved", counted_moves)
    found = list[Counter[Stack]]()
    met: tuple[Inputs, ...] = ("known", "new", "known", "other")
    for inputs in met:
        timed.between.meet(inputs)
        written.clear()
        timed.between(range(3))
        found.append(Counter(written))
    assert timed.between._is_exchanged
    # a sample that is taken again, when all others were met
    timed.between._others = iter(())
    written.clear()
    timed.between(range(3))
    assert written == found[0]
    assert found == [found[0]] * 4
    # a length for each sequence among others
    assert len(found[0]) == len(session.fixed(session.unmutated)) + len(timed.between._moved)
    timed.between.settle()
