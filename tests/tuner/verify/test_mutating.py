"""Ops that write to an argument: what they leave there is a result like any output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from registry.arguments.schema import Schema
from registry.contract import Op
from registry.contracts import SQUARE
from registry.errors import CheckError, InvalidDefinitionError
from registry.problem import Arguments, Problem, Value
from registry.testing import check_implementation, check_op
from registry.tuner.planning.problems import needed_bytes
from registry.tuner.verify.session import Session
from registry.tuner.verify.verify import WrongError, verify_timed

from ..going_through import CPU, PROTOCOL, Custom, Function, go_through, timed_on

DIMS: dict[str, Value] = {"n": 1000, "dtype": "float32"}


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
    return lambda arguments: Problem(name, SQUARE.pose(arguments).dims)


TAKE = replace(
    SQUARE, name="acme::take", schema="acme::take(Tensor(a!) x) -> Tensor y", reference=take, backward=None,
    fake=torch.empty_like, problem=named("acme::take"), examples=(DIMS,),
)  # fmt: skip
SHRINK = replace(
    SQUARE, name="acme::shrink", schema="acme::shrink(Tensor(a!) x) -> ()", reference=shrink, backward=None,
    fake=lambda x: None, problem=named("acme::shrink"), examples=(DIMS,),
)  # fmt: skip


class Functional(Custom):
    """Returns what the function returns."""

    returns_outputs = True


def session_of(op: Op) -> Session:
    return Session(op, op.problem_of(DIMS), CPU, PROTOCOL, 7)


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
    go_through(Custom(TAKE.name, right), session_of(TAKE), {})
    go_through(Functional(TAKE.name, take), session_of(TAKE), {})


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
@pytest.mark.few(4)
def test_who_writes_anything_else_is_refused(make: Callable[[], Function], message: str) -> None:
    with pytest.raises(WrongError, match=message):
        go_through(Custom(TAKE.name, make()), session_of(TAKE), {})


def test_who_writes_beside_costs_nobody_else_in_its_block() -> None:
    session = session_of(TAKE)
    rogue, honest = (timed_on(session, Custom(TAKE.name, function), {}) for function in (writes_beside, right))
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
    go_through(Custom(SHRINK.name, lambda x: x.mul_(-0.75)), session_of(SHRINK), {})
    go_through(Functional(SHRINK.name, shrink), session_of(SHRINK), {})
    for implementation in (Custom(SHRINK.name, lambda x: None), Functional(SHRINK.name, lambda x: None)):
        with pytest.raises(WrongError, match=r"x\[\d+\] is .*, expected"):
            go_through(implementation, session_of(SHRINK), {})
    with pytest.raises(WrongError, match="1 outputs returned, expected 0"):
        go_through(Functional(SHRINK.name, lambda x: x.mul_(-0.75)), session_of(SHRINK), {})


@pytest.mark.parametrize(("op", "good", "bad"), [(TAKE, right, forgets_to_write), (SHRINK, shrink, lambda x: None)])
@pytest.mark.few(1)
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
