"""Results of every dtype, returned or left in an argument: right ones pass all that a trial checks, others do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from registry.contract import Op, Tolerance
from registry.contracts import SQUARE
from registry.errors import CheckError, InvalidDefinitionError
from registry.problem import Arguments, Problem, Value, dtype_name
from registry.testing import check_implementation, check_op
from registry.tuner.verify.session import Session
from registry.tuner.verify.verify import WrongError

from ...tiers import one_of_each
from ..going_through import CPU, PROTOCOL, Custom, Function, go_through

DIMS: dict[str, Value] = {"n": 1000, "dtype": "float32"}
EXACT = (torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
DTYPES = (*EXACT, *UNSIGNED, *FLOAT8, torch.float16, torch.bfloat16)


def turned(state: torch.Tensor) -> torch.Tensor:
    """Its elements from the last to the first."""
    return state[torch.arange(len(state)).flip(0)]


def turn(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """Returns the square of x; the state is turned round."""
    state.copy_(turned(state))
    return x * x


def returned(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """The state turned round."""
    return turned(state)


def named(name: str) -> Callable[[Arguments], Problem]:
    """SQUARE's problem under another op's name."""
    return lambda arguments: Problem(name, SQUARE.pose(arguments).dims)


def op_of(dtype: torch.dtype, name: str, schema: str, reference: Any, fake: Any) -> Op:
    """Takes ``x`` and 50 numbers of the dtype, or as many as x has."""

    def inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
        drawn = torch.randint(0, 2 if dtype == torch.bool else 100, (min(50, problem.n),), generator=generator)
        return *SQUARE.inputs(problem, kind, generator), drawn.to(dtype)

    rounding = torch.finfo(dtype).eps / 2 if dtype.is_floating_point else 0.0
    tolerance = Tolerance(
        {**SQUARE.tolerance.rtol, dtype_name(dtype): rounding},
        {**SQUARE.tolerance.atol, dtype_name(dtype): 1e-3},
        SQUARE.tolerance.scale,
    )
    return replace(
        SQUARE, name=name, schema=f"{name}{schema}", reference=reference, fake=fake, inputs=inputs, backward=None,
        problem=named(name), examples=(DIMS,), kinds=("normal",), tolerance=tolerance,
    )  # fmt: skip


def mutating(dtype: torch.dtype) -> Op:
    """Its second result is what it leaves in an argument of that dtype."""
    schema = "(Tensor x, Tensor(a!) state) -> Tensor y"
    return op_of(dtype, "acme::turn", schema, turn, lambda x, state: torch.empty_like(x))


def returning(dtype: torch.dtype) -> Op:
    """Its one output has that dtype."""
    schema = "(Tensor x, Tensor state) -> Tensor y"
    return op_of(dtype, "acme::turned", schema, returned, lambda x, state: torch.empty_like(state))


def write_turned(y: torch.Tensor, x: torch.Tensor, state: torch.Tensor) -> None:
    y.copy_(turned(state))


def write_square_and_turn(y: torch.Tensor, x: torch.Tensor, state: torch.Tensor) -> None:
    y.copy_(turn(x, state))


def but_for_the_last(function: Function, place: int) -> Function:
    """The function, after which one element of the argument at ``place`` is 0, or 1 where it was 0."""

    def wrong(*arguments: torch.Tensor) -> None:
        function(*arguments)
        last = arguments[place][-1:]
        last.copy_((last.float() == 0).to(last.dtype))

    return wrong


KINDS = pytest.mark.parametrize(
    ("make", "function", "place", "name"),
    [(mutating, write_square_and_turn, 2, "state"), (returning, write_turned, 0, "y")],
    ids=["mutated", "returned"],
)


@KINDS
@pytest.mark.parametrize("dtype", one_of_each(DTYPES, lambda dtype: dtype.is_floating_point), ids=dtype_name)
@pytest.mark.few(2)
def test_a_right_result_passes_and_one_wrong_element_does_not(
    make: Callable[[torch.dtype], Op], function: Function, place: int, name: str, dtype: torch.dtype
) -> None:
    op = make(dtype)
    session = Session(op, op.problem_of(DIMS), CPU, PROTOCOL, 7)
    go_through(Custom(op.name, function), session, {})
    with pytest.raises(WrongError, match=rf"{name}\[49\] is .*, expected"):
        go_through(Custom(op.name, but_for_the_last(function, place)), session, {})


@KINDS
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint16, torch.float8_e4m3fn], ids=dtype_name)
@pytest.mark.few(3)
def test_the_public_checks_know_every_dtype(
    make: Callable[[torch.dtype], Op], function: Function, place: int, name: str, dtype: torch.dtype
) -> None:
    op = make(dtype)
    check_op(op)
    check_implementation(Custom(op.name, function), op, problems=[DIMS])
    with pytest.raises(CheckError, match=rf"{name}\[49\] is .*, expected"):
        check_implementation(Custom(op.name, but_for_the_last(function, place)), op, problems=[DIMS])


@pytest.mark.parametrize("make", [mutating, returning])
def test_a_complex_result_is_refused_in_so_many_words(make: Callable[[torch.dtype], Op]) -> None:
    op = make(torch.complex64)
    session = Session(op, op.problem_of(DIMS), CPU, PROTOCOL, 7)
    with pytest.raises(InvalidDefinitionError, match="no error rule for complex numbers"):
        session.case("normal")
    with pytest.raises(CheckError, match="no error rule for complex numbers"):
        check_op(op)


def test_a_counter_that_float64_cannot_count_is_counted() -> None:
    def count(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        state.add_(2**60 + 1)
        return x * x

    op = replace(mutating(torch.int64), reference=count)
    session = Session(op, op.problem_of(DIMS), CPU, PROTOCOL, 7)
    go_through(Custom(op.name, lambda y, x, state: y.copy_(count(x, state))), session, {})

    def miscount(y: torch.Tensor, x: torch.Tensor, state: torch.Tensor) -> None:
        y.copy_(count(x, state))
        state[-1:].add_(1)

    with pytest.raises(WrongError, match=r"state\[49\] is 11529\d+, expected 11529\d+: not allowed at all"):
        go_through(Custom(op.name, miscount), session, {})
