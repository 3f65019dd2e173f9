"""One element too many that is read, changed and written is seen, beside arguments that are mutated and outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from registry.contract import Floor, Op, Tolerance
from registry.errors import CheckError
from registry.problem import Arguments, Problem, dtype_name
from registry.testing import check_implementation
from registry.tuner.verify.session import Session
from registry.tuner.verify.verify import WrongError, verify_timed

from ...tiers import one_of_each
from ..going_through import CPU, PROTOCOL, Custom, Function, go_through, timed_on

FLOATS = ("float64", "float32", "float16", "bfloat16")
CASES = [
    *((dtype, change) for dtype in FLOATS for change in ("mul_", "add_", "relu_")),
    *(("int32", change) for change in ("mul_", "add_", "relu_")),
    ("bool", "|="),
]
CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "mul_": lambda x: x.mul_(-0.75 if x.is_floating_point() else 3),
    "add_": lambda x: x.add_(1),
    "relu_": lambda x: x.relu_(),
    "|=": lambda x: x.__ior__(True),
}
EXACT = dict.fromkeys(FLOATS, 0.0)


def change(x: torch.Tensor) -> torch.Tensor:
    """Writes another value of the same dtype to every element of x, and returns it."""
    if x.dtype == torch.bool:
        return x.logical_not_().clone()
    return x.mul_(-0.5 if x.is_floating_point() else 7).clone()


def problem_of(arguments: Arguments) -> Problem:
    x = arguments.tensor("x")
    return Problem(arguments.op, {"n": x.numel, "dtype": dtype_name(x.dtype)})


def inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[torch.Tensor]:
    drawn = torch.randn(problem.n, generator=generator) * 100
    return (drawn > 0 if problem.torch_dtype == torch.bool else drawn.to(problem.torch_dtype),)


CHANGE = Op(
    name="acme::change", schema="acme::change(Tensor(a!) x) -> Tensor y", version=1, reference=change,
    problem=problem_of, inputs=inputs, floor=lambda problem: Floor(4 * problem.n, problem.n),
    tolerance=Tolerance(rtol=EXACT, atol=EXACT, scale=lambda problem, reference: reference.abs()),
    static=frozenset({"dtype"}), dynamic=frozenset({"n"}), fake=torch.empty_like,
)  # fmt: skip


def right(y: torch.Tensor, x: torch.Tensor) -> None:
    y.copy_(change(x))


def one_more(tensor: torch.Tensor, name: str) -> None:
    """Change the element after the last, where the allocation has one."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    beside = int(tensor.storage_offset()) + last + 1
    if beside < tensor.untyped_storage().nbytes() // tensor.itemsize:
        CHANGES[name](tensor.as_strided((1,), (1,), beside))


def too_far(where: str, name: str) -> Function:
    def run(y: torch.Tensor, x: torch.Tensor) -> None:
        right(y, x)
        one_more(x if where == "x" else y, name)

    return run


def session_of(n: int, dtype: str) -> Session:
    return Session(CHANGE, CHANGE.problem_of({"n": n, "dtype": dtype}), CPU, PROTOCOL, 7)


@pytest.mark.parametrize("dtype", one_of_each([*FLOATS, "int32", "bool"], lambda dtype: "float" in dtype))
@pytest.mark.few(1)
def test_who_changes_what_it_should_passes(dtype: str) -> None:
    go_through(Custom(CHANGE.name, right), session_of(1000, dtype), {})
    check_implementation(Custom(CHANGE.name, right), CHANGE, problems=[{"n": 37, "dtype": dtype}])


class Functional(Custom):
    """Returns what the function returns."""

    returns_outputs = True


def test_the_public_check_calls_functional_code_with_the_same_arguments_again() -> None:
    report = check_implementation(Functional(CHANGE.name, change), CHANGE, problems=[{"n": 37, "dtype": "float32"}])
    assert len(report.checked) == 6  # three layouts, and three other sizes
    buffer = torch.empty(37)
    into_buffer = Functional(CHANGE.name, lambda x: buffer.copy_(change(x)))
    with pytest.raises(CheckError, match="two calls return the same memory: the second overwrites the first's result"):
        check_implementation(into_buffer, CHANGE, problems=[{"n": 37, "dtype": "float32"}])


@pytest.mark.parametrize("where", ["x", "y"])
@pytest.mark.few(1)
def test_the_public_check_sees_who_varies_in_what_it_mutates(where: str) -> None:
    calls: list[None] = []

    def varies(y: torch.Tensor, x: torch.Tensor) -> None:
        right(y, x)
        calls.append(None)
        varied = x if where == "x" else y
        # within what is allowed
        varied[(slice(1),) * varied.dim()] *= 1 + len(calls) % 2 * 1e-7

    loose = Tolerance(rtol=dict.fromkeys(FLOATS, 1e-6), atol=EXACT, scale=CHANGE.tolerance.scale)
    op, implementation = replace(CHANGE, tolerance=loose), Custom(CHANGE.name, varies)
    with pytest.raises(CheckError, match="two runs on the same inputs differ; say deterministic = False"):
        check_implementation(implementation, op, problems=[{"n": 37, "dtype": "float32"}])
    implementation.deterministic = False
    assert check_implementation(implementation, op, problems=[{"n": 37, "dtype": "float32"}]).ok


@pytest.mark.parametrize(
    ("dtype", "name", "where"),
    one_of_each([(*case, where) for case in CASES for where in ("x", "y")], lambda dtype, name, where: (name, where)),
)
@pytest.mark.few(1)
def test_one_element_too_many_is_seen_at_the_probes_and_by_the_public_check(dtype: str, name: str, where: str) -> None:
    implementation = Custom(CHANGE.name, too_far(where, name))
    told = "its arguments" if where == "x" else "its outputs"
    with pytest.raises(WrongError, match=f"not for acme::change.*it writes outside {told}"):
        go_through(implementation, session_of(1000, dtype), {})
    told = "its argument x" if where == "x" else "its outputs"
    for n in (36, 37):
        with pytest.raises(CheckError, match=f"it writes outside {told}"):
            check_implementation(implementation, CHANGE, problems=[{"n": n, "dtype": dtype}])


@pytest.mark.parametrize(
    ("dtype", "name", "n", "where"),
    one_of_each(
        [(*case, n, where) for case in CASES for n in (999, 1000) for where in ("x", "y")],
        lambda dtype, name, n, where: (name, n, where),
    ),
)
@pytest.mark.few(4)
def test_one_element_too_many_is_seen_where_it_was_timed(dtype: str, name: str, n: int, where: str) -> None:
    session = session_of(n, dtype)
    timed, sampler = timed_on(session, Custom(CHANGE.name, too_far(where, name)), {})
    sampler.replay()
    told = "x, which it mutates" if where == "x" else "its output y"
    with pytest.raises(WrongError, match=f"it writes outside {told}"):
        verify_timed(timed, sampler, session)


def test_who_is_wrong_and_writes_beside_is_told_that_it_is_wrong() -> None:
    def wrong_at_odd_sizes(y: torch.Tensor, x: torch.Tensor) -> None:
        right(y, x)
        one_more(x, "mul_")
        if len(x) % 2:
            x[-1:] += 1.0

    with pytest.raises(WrongError, match=r"not for acme::change.*x\[\d+\] is .*, expected"):
        go_through(Custom(CHANGE.name, wrong_at_odd_sizes), session_of(1000, "float32"), {})


@pytest.mark.parametrize("beyond", ["x", "y"])
@pytest.mark.few(1)
def test_who_reads_beside_what_it_mutates_finds_nan_there(beyond: str) -> None:
    def reads_too_far(y: torch.Tensor, x: torch.Tensor) -> None:
        right(y, x)
        end = int(x.storage_offset()) + x.numel()
        if end < x.untyped_storage().nbytes() // x.itemsize:
            (x if beyond == "x" else y)[-1:] += 0 * x.as_strided((1,), (1,), end)

    implementation = Custom(CHANGE.name, reads_too_far)
    with pytest.raises(WrongError, match="is nan, expected"):
        go_through(implementation, session_of(1000, "float32"), {})
    with pytest.raises(CheckError, match="is nan, expected"):
        check_implementation(implementation, CHANGE, problems=[{"n": 36, "dtype": "float32"}])
