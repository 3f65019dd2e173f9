"""``check_op``: contracts that agree with themselves, and how each that does not is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import registry
from registry.author_code import where_defined
from registry.checking.steps import checked
from registry.contract import Backward, Op, Tolerance
from registry.contracts import (
    BOX,
    EMBEDDING,
    FUSED_LINEAR_CROSS_ENTROPY_BACKWARD,
    FUSED_LINEAR_CROSS_ENTROPY_GRADIENTS,
    RMS_NORM,
    SQUARE,
)
from registry.correctness.reference_width import narrow_faults
from registry.discovery.catalog import Catalog
from registry.errors import CheckError, InvalidArgumentError
from registry.problem import Arguments, Problem, Value
from registry.testing import check_implementation, check_op

from ..covering import covering


def test_what_is_no_op_and_no_implementation_is_told() -> None:
    with pytest.raises(TypeError, match=r"check_op: op is 'softmax'\n  expected a registry.Op"):
        check_op("softmax")  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"check_implementation: implementation is the class Op\n  expected a registry.Implementation"
    ):
        check_implementation(Op, RMS_NORM)  # type: ignore[arg-type]
    own = next(iter(Catalog().implementations("rms_norm")))
    with pytest.raises(TypeError, match=r"check_implementation: op is 'rms_norm'\n  expected a registry.Op"):
        check_implementation(own, "rms_norm")  # type: ignore[arg-type]


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


def dims(arguments: Arguments) -> dict[str, Value]:
    x = arguments.tensor("x")
    return {"n": x.numel, "dtype": str(x.dtype).removeprefix("torch.")}


def as_torch_names(arguments: Arguments) -> dict[str, Value]:
    return {**dims(arguments), "dtype": str(arguments.tensor("x").dtype)}


HERE = where_defined(dims).rpartition(":")[0]
"""This file, as messages name it."""


def scaled(scale: Callable[..., Any]) -> Tolerance:
    return replace(SQUARE.tolerance, scale=scale)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"fake": unlike_reference}, "reference against fake: y has shape (7,), expected (7, 1)"),
        ({"reference": in_place}, "the reference changes an argument"),
        ({"tolerance": LOOSE}, "its tolerance accepts an all-zero output"),
        ({"inputs": other_dtype}, "they pose square(n=7, dtype=float16)"),
        ({"inputs": unseeded}, "two generators with one seed make different inputs"),
        ({"inputs": lambda problem, kind, generator: (1, 2)}, "inputs() returned 2 values, expected 1"),
        ({"floor": lambda problem: SQUARE.floor(problem).__class__(0, 0)}, "bytes must be positive"),
        ({"inputs": lambda problem, kind, generator: torch.ones(problem.n)}, f"inputs() returned a Tensor ({HERE}:"),
        ({"inputs": lambda problem, kind, generator: None}, f"inputs() returned a NoneType ({HERE}:"),
        ({"inputs": lambda problem, kind, generator: ("x",)}, "inputs() returned what the op does not take: square: x"),
        ({"reference": lambda x: None}, f"its reference returned None, no output ({HERE}:"),
        ({"reference": lambda x: (x * x, x)}, f"its reference returned 2 outputs ({HERE}:"),
        ({"problem": as_torch_names}, f"problem() gives dtype as 'torch.float32' ({HERE}:"),
        ({"problem": lambda arguments: {**dims(arguments), "n": 7.0}}, f"problem() gives n as 7.0, a float ({HERE}:"),
        ({"problem": lambda arguments: {"n": arguments.integer("x")}}, "x must be an int, got a tensor"),
        ({"tolerance": scaled(lambda problem, y: 1.0)}, "scale of a tolerance returned 1.0 for a result of shape (7,)"),
        ({"tolerance": scaled(lambda problem, y: torch.ones(5))}, "returned shape (5,) for a result of shape (7,)"),
        ({"tolerance": scaled(lambda problem, y, values: None)}, "returned None for a result of shape (7,)"),
        ({"view": lambda arguments: arguments.moved(0, 1)}, "view() raised AttributeError: 'Arguments' object"),
    ],
)
def test_a_contract_that_contradicts_itself_is_refused(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(CheckError) as raised:
        check_op(replace(SQUARE, kinds=("normal",), **change), problems=SMALL)
    assert expected in str(raised.value)


def test_every_fault_of_a_contract_is_told_with_a_line_of_the_author() -> None:
    """Also one of an accessor, whose own message knows no line."""
    with pytest.raises(CheckError, match=rf"did you mean x\?\) \({HERE}:\d+\)"):
        check_op(replace(SQUARE, problem=lambda arguments: {"n": arguments.tensor("xx").numel}), problems=SMALL)


@pytest.mark.parametrize(
    ("example", "told"),
    [
        ({"m": 3, "dtype": "float32"}, "unknown dimension of square 'm'"),
        ({"n": 3, "dtype": "float23"}, "'float23' is not a torch dtype (expected e.g. float32"),
        ({"n": 3}, "dimensions missing: dtype"),
    ],
)
def test_an_example_that_is_no_problem_is_told_and_the_others_are_checked(example: Any, told: str) -> None:
    with pytest.raises(CheckError) as raised:
        check_op(replace(SQUARE, kinds=("normal",), examples=(*SMALL, example)))
    assert f"examples[{len(SMALL)}], {example}: " in str(raised.value)
    assert told in str(raised.value)
    assert f"{len(SMALL)} checked" in str(raised.value)


@pytest.mark.parametrize("verdict", [False, True, "a reason", iter(())])
def test_a_check_that_returns_a_verdict_is_told(verdict: Any) -> None:
    """The host looks at what it raises alone: nothing would ever be refused."""
    with pytest.raises(CheckError, match=r"check\(\) returned .*raise registry\.InvalidArgumentError"):
        check_op(replace(SQUARE, kinds=("normal",), examples=SMALL, check=lambda problem: verdict))


@pytest.mark.parametrize("narrow", [lambda x: (x.float() ** 2).to(x.dtype), lambda x: (x.half() ** 2).to(x.dtype)])
def test_a_reference_that_computes_in_less_than_float64_is_told(narrow: Callable[..., torch.Tensor]) -> None:
    """Kernels would be judged by a reference of their own precision."""
    loose = replace(SQUARE.tolerance, rtol=dict.fromkeys(SQUARE.tolerance.rtol, 1e-2))
    with pytest.raises(CheckError, match=rf"computes y in less than float64 .*{HERE}:\d+"):
        check_op(replace(SQUARE, kinds=("normal",), reference=narrow, tolerance=loose), problems=SMALL)


@pytest.mark.parametrize(
    "reference",
    [
        torch.sign,
        torch.relu,
        lambda x: x.round(),
        lambda x: (x * 127).round() / 127,
        torch.zeros_like,
        lambda x: x.to(torch.bfloat16).to(x.dtype),
        lambda x: x.sum(-1, dtype=torch.promote_types(x.dtype, torch.float32)).to(x.dtype),
        lambda x: (x * x).to(torch.float32),
        lambda x: x.argmax(-1),
    ],
)
def test_a_reference_of_few_values_or_of_another_dtype_is_not_called_narrow(reference: Any) -> None:
    x = torch.randn(64, 9, generator=torch.Generator().manual_seed(1))
    assert narrow_faults(replace(SQUARE, reference=reference), (x,)) == []


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
    with pytest.raises(CheckError, match="nothing was checked: give the op examples, or"):
        check_op(replace(SQUARE, examples=()))


def test_a_reference_that_is_to_be_inlined_reads_no_data() -> None:
    def above(x: torch.Tensor) -> torch.Tensor:
        return x * x if bool((x > -torch.inf).all()) else x

    inlined = replace(SQUARE, backward=Backward.reference(inline=True), examples=())
    assert check_op(inlined, problems=SMALL).ok
    with pytest.raises(CheckError, match="normal inputs: its reference cannot be inlined: without data it raises"):
        check_op(replace(inlined, reference=above), problems=SMALL)


def test_a_reference_whose_outputs_lie_as_its_inputs_do_but_not_its_fakes_is_told() -> None:
    """Where inputs are row-major both agree; a compiled call with others would fail."""
    kept = registry.rows_op("own::same(Tensor x) -> Tensor y", lambda x: x + 1, fake=lambda x: x.new_empty(x.shape))
    with pytest.raises(CheckError, match=r"transposed inputs: reference against fake: y has strides \(1, 3\)"):
        check_op(kept, problems=[{"rows": 3, "cols": 40, "dtype": "float32"}])
    check_op(
        replace(kept, reference=lambda x: (x + 1).contiguous()),
        problems=[{"rows": 3, "cols": 40, "dtype": "float32"}],
    )


def test_references_of_the_losses_gradients_are_row_major_whatever_their_inputs_are() -> None:
    for op in (FUSED_LINEAR_CROSS_ENTROPY_BACKWARD, FUSED_LINEAR_CROSS_ENTROPY_GRADIENTS):
        check_op(replace(op, kinds=op.kinds[:1]), problems=op.examples[:1])


def test_infinite_inputs_do_not_make_a_reference_narrow() -> None:
    x = torch.randn(64, 9, generator=torch.Generator().manual_seed(1))
    x[::2, 3:] = -torch.inf
    assert narrow_faults(replace(SQUARE, reference=lambda x: x.softmax(-1)), (x,)) == []


def gathered(problem: Callable[[Arguments], dict[str, Value]]) -> Op:
    """An op that scales rows of a table, by indices: with as many scales as indices."""

    def inputs(problem: Problem, _: str, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        table, scales = torch.randn(problem.n + 1, 3, generator=generator), torch.rand(problem.n, generator=generator)
        return table, torch.arange(1, problem.n + 1), scales

    return replace(
        SQUARE,
        name="gathered",
        schema="gathered(Tensor table, Tensor rows, Tensor scales) -> Tensor y",
        reference=lambda table, rows, scales: table[rows] * scales[:, None],
        fake=lambda table, rows, scales: table.new_empty(rows.shape[0], table.shape[1]),
        problem=problem,
        inputs=inputs,
        kinds=("normal",),
        examples=({"n": 4, "dtype": "float32"},),
        independent=frozenset(),
        backward=None,
    )


def test_a_tensor_that_is_too_short_for_the_others_is_warned_of() -> None:
    def of_rows(arguments: Arguments) -> dict[str, Value]:
        return {"n": arguments.tensor("rows").numel, "dtype": "float32"}

    def careful(arguments: Arguments) -> dict[str, Value]:
        if arguments.tensor("scales").shape != arguments.tensor("rows").shape:
            raise InvalidArgumentError("one scale an index")
        return of_rows(arguments)

    (told,) = check_op(gathered(of_rows)).warned
    assert "problem() does not tell scales of shape (3,) from one of (4,)" in told
    assert "table" not in told  # which index a table has is no matter of its shape
    assert not check_op(gathered(careful)).warned
    assert f"passed warning: {told}" == " ".join(checked(lambda: check_op(gathered(of_rows)))[:2])
    with pytest.raises(CheckError, match=r"warning: gathered\(n=4, dtype=float32\): problem\(\) does not"):
        check_op(gathered(of_rows), problems=[{"n": 4, "dtype": "float32"}, {"n": 1, "dtype": "float16"}])
