"""Ops that write to an argument: what they leave there is a result like any output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from registry.artifact import Built
from registry.contract import Op
from registry.contracts import SQUARE
from registry.device import Device
from registry.dispatch.plan import Candidate, build
from registry.errors import CheckError, InvalidDefinitionError
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Arguments, Problem, Value
from registry.schema import Schema
from registry.space import Config
from registry.testing import check_implementation, check_op
from registry.tuner.planning import needed_bytes
from registry.tuner.probes import Probes
from registry.tuner.protocol import Protocol
from registry.tuner.samplers import Sampler
from registry.tuner.sampling import sampler_for
from registry.tuner.session import Session
from registry.tuner.timed import TimedPlan
from registry.tuner.verify import WrongError, verify, verify_timed

CPU = Device.of("cpu")
PROTOCOL = replace(Protocol.of(CPU), cache_bytes=2**20)
DIMS: dict[str, Value] = {"n": 1000, "dtype": "float32"}
Function = Callable[..., Any]


def take(x: torch.Tensor) -> torch.Tensor:
    """Returns the square of x, of which -3/4 are left."""
    y = x * x
    x.mul_(-0.75)
    return y


def shrink(x: torch.Tensor) -> None:
    """-3/4 of x are left."""
    x.mul_(-0.75)


def named(name: str) -> Callable[[Arguments], Problem]:
    """SQUARE's problem under another op's name."""
    return lambda arguments: Problem(name, SQUARE.problem(arguments).dims)


TAKE = replace(
    SQUARE, name="acme::take", schema="acme::take(Tensor(a!) x) -> Tensor y", reference=take, backward=None,
    fake=torch.empty_like, problem=named("acme::take"), examples=(DIMS,),
)  # fmt: skip
SHRINK = replace(
    SQUARE, name="acme::shrink", schema="acme::shrink(Tensor(a!) x) -> ()", reference=shrink, backward=None,
    fake=lambda x: None, problem=named("acme::shrink"), examples=(DIMS,),
)  # fmt: skip


class Custom(Implementation):
    """Calls a function of the outputs and the arguments."""

    name = "test.custom"
    device_types = frozenset({"cpu"})

    def __init__(self, op: str, function: Function) -> None:
        self.op = op
        self._function = function

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> Any:
            return self._function(*outputs, *arguments)

        return run


class Functional(Custom):
    """Returns what the function returns."""

    returns_outputs = True


def go_through(op: Op, implementation: Implementation) -> None:
    """What a trial does, but for the samples."""
    session = Session(op, op.problem_of(DIMS), CPU, PROTOCOL, 7)
    plan = build(op, Candidate(implementation, {}), session.problem, session.arguments, CPU)
    verify(plan, session)
    Probes(CPU).check(plan, {})
    timed = TimedPlan(plan, session)
    sampler = sampler_for(
        timed.launches, capturable=True, working_set=session.working_set, protocol=PROTOCOL, device=CPU
    )
    verify_timed(timed, sampler, session)
    verify_timed(timed, sampler, session, alone=False)


def right(y: torch.Tensor, x: torch.Tensor) -> None:
    torch.mul(x, x, out=y)
    x.mul_(-0.75)


def forgets_to_write(y: torch.Tensor, x: torch.Tensor) -> None:
    torch.mul(x, x, out=y)


def writes_all_but_the_last(y: torch.Tensor, x: torch.Tensor) -> None:
    torch.mul(x, x, out=y)
    x[:-1].mul_(-0.75)


def writes_beside(y: torch.Tensor, x: torch.Tensor) -> None:
    right(y, x)
    storage = x.untyped_storage().nbytes() // x.element_size()
    end = x.storage_offset() + x.numel()
    if end < storage:
        x.as_strided((1,), (1,), end).fill_(1.0)


def writes_beside_at_odd_sizes(y: torch.Tensor, x: torch.Tensor) -> None:
    (writes_beside if x.numel() % 4 else right)(y, x)


def lowers_precision(y: torch.Tensor, x: torch.Tensor) -> None:
    torch.mul(x, x, out=y)
    x.copy_(x.to(torch.bfloat16) * -0.75)


def writes_on_first_call_only() -> Function:
    calls = []

    def run(y: torch.Tensor, x: torch.Tensor) -> None:
        torch.mul(x, x, out=y)
        if len(calls) < 8:
            x.mul_(-0.75)
        calls.append(None)

    return run


def varies() -> Function:
    calls = []

    def run(y: torch.Tensor, x: torch.Tensor) -> None:
        right(y, x)
        if calls:
            x[:1] = torch.nextafter(x[:1], torch.ones(1))
        calls.append(None)

    return run


def test_who_writes_what_the_reference_writes_passes() -> None:
    go_through(TAKE, Custom(TAKE.name, right))
    go_through(TAKE, Functional(TAKE.name, take))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: forgets_to_write, r"x\[\d+\] is .*, expected"),
        (lambda: writes_all_but_the_last, r"x\[999\] is .*, expected"),
        (lambda: lowers_precision, r"x\[\d+\] is .*, expected"),
        (lambda: writes_beside, r"not for acme::take\(n=.*it writes outside its arguments"),
        (lambda: writes_beside_at_odd_sizes, r"not for acme::take\(n=.*it writes outside its arguments"),
        (writes_on_first_call_only, r"x\[\d+\] is .*, expected"),
        (varies, "two runs on the same input differ"),
    ],
)
def test_who_writes_anything_else_is_refused(make: Callable[[], Function], message: str) -> None:
    with pytest.raises(WrongError, match=message):
        go_through(TAKE, Custom(TAKE.name, make()))


def timed_on(session: Session, function: Function) -> tuple[TimedPlan, Sampler]:
    """Ready to be timed, as an entrant of a block."""
    candidate = Candidate(Custom(session.op.name, function), {})
    timed = TimedPlan(build(session.op, candidate, session.problem, session.arguments, CPU), session)
    return timed, sampler_for(
        timed.launches, capturable=True, working_set=session.working_set, protocol=PROTOCOL, device=CPU
    )


def test_who_writes_beside_costs_nobody_else_in_its_block() -> None:
    session = Session(TAKE, TAKE.problem_of(DIMS), CPU, PROTOCOL, 7)
    rogue, honest = timed_on(session, writes_beside), timed_on(session, right)
    for _, sampler in (rogue, honest):
        sampler.replay()
    verify_timed(*honest, session, alone=False)
    with pytest.raises(WrongError, match="it writes outside x, which it mutates"):
        verify_timed(*rogue, session, alone=False)
    verify_timed(*honest, session, alone=False)


def test_memory_for_the_bounds_of_what_is_written_is_counted() -> None:
    (argument,) = SHRINK.result_specs(SHRINK.arguments((torch.empty(1000),)), CPU.torch)
    assert argument.numel == 1000
    with_output = replace(TAKE, schema="acme::take(Tensor x) -> Tensor y")
    assert needed_bytes(TAKE, TAKE.problem_of(DIMS)) > needed_bytes(with_output, TAKE.problem_of(DIMS))


def test_an_op_without_outputs_is_judged_by_what_it_writes() -> None:
    check_op(SHRINK, problems=[DIMS])
    go_through(SHRINK, Custom(SHRINK.name, lambda x: x.mul_(-0.75)))
    go_through(SHRINK, Functional(SHRINK.name, shrink))
    for implementation in (Custom(SHRINK.name, lambda x: None), Functional(SHRINK.name, lambda x: None)):
        with pytest.raises(WrongError, match=r"x\[\d+\] is .*, expected"):
            go_through(SHRINK, implementation)
    with pytest.raises(WrongError, match="1 outputs returned, expected 0"):
        go_through(SHRINK, Functional(SHRINK.name, lambda x: x.mul_(-0.75)))


@pytest.mark.parametrize(("op", "good", "bad"), [(TAKE, right, forgets_to_write), (SHRINK, shrink, lambda x: None)])
def test_the_public_check_looks_at_what_was_written_too(op: Op, good: Function, bad: Function) -> None:
    check_implementation(Custom(op.name, good), op, problems=[DIMS])
    with pytest.raises(CheckError, match=r"x\[\d+\] is .*, expected"):
        check_implementation(Custom(op.name, bad), op, problems=[DIMS])


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("acme::f(Tensor x) -> ()", "it returns nothing and writes to nothing"),
        ("acme::f(Tensor(a!)? x) -> Tensor y", "x is mutated and optional"),
    ],
)
def test_a_schema_that_nobody_could_judge_is_refused(schema: str, message: str) -> None:
    with pytest.raises(InvalidDefinitionError, match=message):
        Schema.parse(schema)
