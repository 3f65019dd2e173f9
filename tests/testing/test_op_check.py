"""``check_op``: contracts that agree with themselves, and how each that does not is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from registry.contract import Backward, Op, Tolerance
from registry.contracts import BOX, EMBEDDING, RMS_NORM, SQUARE
from registry.errors import CheckError, InvalidArgumentError
from registry.problem import Problem, Value
from registry.testing import check_op

from ..covering import covering


def sixteenths(size: int) -> tuple[int, int]:
    return (size - 1) // 16 * 16 + 1, -(-size // 16) * 16


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (lambda size: (size // 2, size * 2), "33 is in the range (16, 66), but 16 in (8, 32)"),
        (lambda size: (1, 16), "the range of 33 is (1, 16)"),
        (lambda size: [size, size], "the range of 33 is [33, 33]"),
        (lambda size: (0, 64), "the range of 33 is (0, 64)"),
    ],
)
def test_ranges_along_which_winners_transfer_are_checked(declared: Any, expected: str) -> None:
    problems = ({"rows": 3, "cols": 33, "dtype": "float32"},)
    assert check_op(replace(RMS_NORM, transfers={"cols": sixteenths}), problems=problems).ok
    with pytest.raises(CheckError) as raised:
        check_op(replace(RMS_NORM, transfers={"cols": declared}), problems=problems)
    assert expected in str(raised.value)


def test_an_end_of_a_range_has_to_be_a_problem_of_the_op() -> None:
    def even(problem: Problem) -> None:
        if problem.cols % 2:
            raise InvalidArgumentError("an odd number of columns")

    op = replace(RMS_NORM, check=even, transfers={"cols": sixteenths}, examples=())
    with pytest.raises(CheckError, match=r"cols=17, an end of the range of 32, is no problem of the op: an odd number"):
        check_op(op, problems=({"rows": 3, "cols": 32, "dtype": "float32"},))


@pytest.mark.parametrize(
    ("backward", "expected"),
    [
        (Backward.reference(("z",)), "differentiable in its backward are z: expected some of ['y']"),
        (Backward("square_backward", ("xs",)), "its backward saves xs: did you mean x?"),
    ],
)
def test_a_backward_that_names_no_tensor_is_told(backward: Backward, expected: str) -> None:
    with pytest.raises(CheckError) as raised:
        check_op(replace(SQUARE, backward=backward, examples=()), problems=SMALL)
    assert expected in str(raised.value)


SMALL: tuple[dict[str, Value], ...] = ({"n": 7, "dtype": "float32"},)


@pytest.mark.parametrize("op", BOX, ids=lambda op: op.name)
@pytest.mark.few(12)
def test_the_ops_in_the_box_agree_with_themselves_on_some_examples(op: Op) -> None:
    problems = covering(map(op.problem_of, op.examples))
    # so that the ops together have every dtype
    problem = problems[BOX.index(op) % len(problems)]
    assert len(check_op(op, problems=[problem]).checked) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("op", BOX, ids=lambda op: op.name)
def test_the_ops_in_the_box_agree_with_themselves(op: Op) -> None:
    assert len(check_op(op).checked) == len(op.examples)


def unlike_reference(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], 1)


def in_place(x: torch.Tensor) -> torch.Tensor:
    return x.mul_(x).clone()


LOOSE = Tolerance(SQUARE.tolerance.rtol, dict.fromkeys(SQUARE.tolerance.atol, 1e30), SQUARE.tolerance.scale)


def other_dtype(problem: Problem, kind: str, generator: torch.Generator) -> tuple[torch.Tensor]:
    return (torch.randn(problem.n, generator=generator, dtype=torch.float16),)


def unseeded(problem: Problem, kind: str, generator: torch.Generator) -> tuple[torch.Tensor]:
    return (torch.randn(problem.n),)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"fake": unlike_reference}, "reference against fake: y has shape (7,), expected (7, 1)"),
        ({"reference": in_place}, "the reference changes an argument"),
        ({"tolerance": LOOSE}, "its tolerance accepts an all-zero output"),
        ({"inputs": other_dtype}, "they pose square(n=7, dtype=float16)"),
        ({"inputs": unseeded}, "two generators with one seed make different inputs"),
        ({"inputs": lambda problem, kind, generator: (1, 2)}, "2 values given, expected 1"),
        ({"floor": lambda problem: SQUARE.floor(problem).__class__(0, 0)}, "bytes must be positive"),
    ],
)
def test_a_contract_that_contradicts_itself_is_refused(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(CheckError) as raised:
        check_op(replace(SQUARE, kinds=("normal",), **change), problems=SMALL)
    assert expected in str(raised.value)


def test_kinds_of_inputs_that_a_plan_is_bound_apart_for_are_refused() -> None:
    """What is tuned with an argument would not be what runs without it; an index of another width would be misread."""

    def inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
        indices, weight, _ = EMBEDDING.inputs(problem, "normal", generator)
        return (indices, weight, None) if kind == "normal" else (indices.to(torch.int32), weight, 0)

    with pytest.raises(CheckError) as raised:
        check_op(replace(EMBEDDING, inputs=inputs, kinds=("normal", "other")), problems=EMBEDDING.examples[-1:])
    told = str(raised.value)
    assert "other inputs: indices is torch.int32, that of normal inputs torch.int64: one plan answers both" in told
    assert "other inputs: padding_idx is int, that of normal inputs NoneType" in told


def test_an_op_without_examples_needs_problems() -> None:
    with pytest.raises(CheckError, match="nothing was checked"):
        check_op(replace(SQUARE, examples=()))


def test_a_reference_that_is_to_be_inlined_reads_no_data() -> None:
    def above(x: torch.Tensor) -> torch.Tensor:
        return x * x if bool((x > -torch.inf).all()) else x

    inlined = replace(SQUARE, backward=Backward.reference(inline=True), examples=())
    assert check_op(inlined, problems=SMALL).ok
    with pytest.raises(CheckError, match="normal inputs: its reference cannot be inlined: without data it raises"):
        check_op(replace(inlined, reference=above), problems=SMALL)
