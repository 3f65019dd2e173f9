"""Products of rows grouped by expert: mutants that their tolerances refuse, offsets, calls that are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch

import registry
from registry.contract import Op, as_tuple
from registry.contracts import GROUPED_GEMM, GROUPED_GEMM_BACKWARD
from registry.contracts.grouped.routing import ROUTING, rows_of_experts
from registry.correctness import numerics
from registry.errors import InvalidArgumentError
from registry.problem import Problem, Value

Tensor = torch.Tensor
OPS = {op.name: op for op in (GROUPED_GEMM, GROUPED_GEMM_BACKWARD)}
SHAPES: tuple[tuple[int, int, str], ...] = ((70, 6, "uniform"), (33, 9, "skewed"), (3, 5, "one_expert"))


@cache
def problems() -> list[Problem]:
    return [
        op.problem_of({"m": m, "n": 24, "k": 40, "experts": experts, "routing": routing, "dtype": dtype})
        for op in OPS.values()
        for m, experts, routing in SHAPES
        for dtype in ("float32", "bfloat16")
    ]


@cache
def case(name: str, key: str, kind: str) -> tuple[tuple[Any, ...], tuple[Tensor, ...], tuple[float, ...]]:
    op, problem = OPS[name], next(one for one in problems() if one.key == key)
    values = op.draw(problem, kind, torch.Generator().manual_seed(7))
    reference = numerics.reference64(op, values)
    return values, reference, numerics.own_error(op, problem, values, reference)


def verdicts(op: Op, problem: Problem, compute: Callable[..., Any]) -> Iterator[numerics.Comparison]:
    for kind in op.kinds:
        values, reference, own = case(op.name, problem.key, kind)
        yield numerics.compare(op, problem, compute(op, *values), reference, own, values)


def changed(**change: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    """The reference on arguments of which some are changed."""

    def compute(op: Op, *values: Any) -> Any:
        named = dict(zip(op.parsed.names, values, strict=True))
        return op.reference(*{**named, **{name: new(named) for name, new in change.items()}}.values())

    return compute


def summed(named: dict[str, Any]) -> str:
    """The argument whose columns are summed over for each row."""
    return "grad_y" if "grad_y" in named else "x"


def last_left_out(op: Op, *values: Any) -> Any:
    named = dict(zip(op.parsed.names, values, strict=True))
    first = named[summed(named)].clone()
    first[:, -1] = 0
    return op.reference(*{**named, summed(named): first}.values())


def moved(by: int, first: int, end: int) -> Callable[[dict[str, Any]], Tensor]:
    """Offsets ``first`` to ``end`` moved by so many rows."""

    def new(named: dict[str, Any]) -> Tensor:
        offsets: Tensor = named["offsets"].clone()
        offsets[first : end or None] += by
        return offsets.clamp(0, named["x"].shape[0])

    return new


def last_row_of_each_left_out(op: Op, *values: Any) -> Any:
    """As a kernel does whose loop over rows ends one too early."""
    outputs = [one.clone() for one in as_tuple(op.reference(*values))]
    ends = dict(zip(op.parsed.names, values, strict=True))["offsets"][1:].long() - 1
    outputs[0][ends.clamp(min=0)] = 0
    return tuple(outputs)


def nobody_is_computed(op: Op, *values: Any) -> Any:
    """Rows before the first offset and after the last one belong to the nearest expert."""

    def all_rows(named: dict[str, Any]) -> Tensor:
        offsets: Tensor = named["offsets"].clone()
        offsets[0], offsets[-1] = 0, named["x"].shape[0]
        return offsets

    return changed(offsets=all_rows)(op, *values)


def empty_expert_takes_a_row(op: Op, *values: Any) -> Any:
    """A tile at least for each expert, also for one without rows."""
    outputs = [one.clone() for one in as_tuple(op.reference(*values))]
    named = dict(zip(op.parsed.names, values, strict=True))
    offsets = named["offsets"].tolist()
    for expert, weight in enumerate(named["weights"]):
        row = offsets[expert]
        if row == offsets[expert + 1] and row < named["x"].shape[0]:
            wide = weight.float() if op is GROUPED_GEMM_BACKWARD else weight.float().T
            outputs[0][row] = (named[summed(named)][row].float() @ wide).to(weight.dtype)
            if op is GROUPED_GEMM_BACKWARD:
                outputs[1][expert] = named["grad_y"][row][:, None] * named["x"][row]
    return tuple(outputs)


def tf32(x: Tensor) -> Tensor:
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


MUTANTS: dict[str, Callable[..., Any]] = {
    "zeros": lambda op, *values: tuple(map(torch.zeros_like, as_tuple(op.reference(*values)))),
    "row boundary one early": changed(offsets=moved(-1, 1, -1)),
    "row boundary one late": changed(offsets=moved(1, 1, -1)),
    "all rows one late": changed(offsets=moved(1, 0, 0)),
    "weights of the next expert": changed(weights=lambda named: named["weights"].roll(1, 0)),
    "first expert's weight for all": changed(weights=lambda named: named["weights"][:1].expand_as(named["weights"])),
    "last of the sum left out": last_left_out,
    "last row of each expert left out": last_row_of_each_left_out,
    "rows of nobody computed": nobody_is_computed,
    "a row for an empty expert": empty_expert_takes_a_row,
    "tf32": changed(weights=lambda named: tf32(named["weights"])),
}
ONLY: dict[str, Callable[[Problem], bool]] = {
    "rows of nobody computed": lambda problem: problem.m >= 8,
    "tf32": lambda problem: problem.dtype == "float32",
}


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("name", OPS)
@pytest.mark.few(11)
def test_a_mutant_is_refused_by_some_kind(name: str, mutant: str) -> None:
    for problem in problems():
        if problem.op == name and (mutant not in ONLY or ONLY[mutant](problem)):
            found = list(verdicts(OPS[name], problem, MUTANTS[mutant]))
            assert any(not verdict.ok for verdict in found), problem


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    "damage",
    [lambda t: t.zero_(), lambda t: t[..., -1].zero_(), lambda t: t.copy_(t.roll(1, 0))],
    ids=["zeros", "last column", "wrong row"],
)
def test_a_gradient_that_is_wrong_beside_a_right_one_is_refused(place: int, damage: Callable[[Tensor], Any]) -> None:
    def compute(op: Op, *values: Any) -> Any:
        outputs = [one.clone() for one in as_tuple(op.reference(*values))]
        damage(outputs[place])
        return tuple(outputs)

    for problem in problems():
        if problem.op == "grouped_gemm_backward":
            assert any(not one.ok for one in verdicts(GROUPED_GEMM_BACKWARD, problem, compute)), problem


def stepwise(op: Op, *values: Any) -> Any:
    """In fp32 eight terms at a time, as a tile's loop does."""
    if op is GROUPED_GEMM_BACKWARD:
        return op.reference(*values)
    x, weights, offsets = values
    parts = [(x[:, at : at + 8], weights[:, :, at : at + 8]) for at in range(0, x.shape[1], 8)]
    total = torch.zeros(x.shape[0], weights.shape[1])
    for left, right in parts:
        total += as_tuple(op.reference(left.float(), right.float(), offsets))[0]
    return total.to(x.dtype)


@pytest.mark.parametrize("problem", problems(), ids=str)
def test_a_right_computation_is_accepted_on_every_kind(problem: Problem) -> None:
    assert [verdict.message for verdict in verdicts(OPS[problem.op], problem, stepwise) if not verdict.ok] == []


@pytest.mark.parametrize("routing", ROUTING)
def test_every_row_has_one_expert(routing: str) -> None:
    for rows, experts in ((0, 3), (1, 8), (7, 3), (1000, 128), (5, 1)):
        counts = rows_of_experts(rows, experts, routing)
        assert (len(counts), sum(counts)) == (experts, rows)
        assert min(counts) >= 0
    assert rows_of_experts(9, 3, "uniform") == [3, 3, 3]
    assert rows_of_experts(1100, 3, "skewed") == [600, 300, 200]
    assert rows_of_experts(9, 3, "one_expert") == [9, 0, 0]


def test_the_floor_reads_only_weights_that_have_rows() -> None:
    dims: dict[str, Value] = {"m": 2, "n": 8, "k": 16, "experts": 4, "dtype": "float32"}
    for routing, busy in (("uniform", 2), ("one_expert", 1)):
        floor = GROUPED_GEMM.floor(GROUPED_GEMM.problem_of({**dims, "routing": routing}))
        assert floor.bytes == 4 * (2 * 16 + busy * 8 * 16 + 2 * 8 + 5)
        assert floor.flop == 2 * 2 * 8 * 16


def call(offsets: list[int], rows: int = 6, dtype: torch.dtype = torch.int32) -> tuple[Tensor, Tensor]:
    """What a call returns, and the rows by the expert of each, where that is not None."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 16, generator=generator)
    weights = torch.randn(len(offsets) - 1, 24, 16, generator=generator)
    right = torch.zeros(rows, 24)
    for expert, weight in enumerate(weights):
        begin, end = (min(max(offset, 0), rows) for offset in offsets[expert : expert + 2])
        right[begin:end] = x[begin:end] @ weight.T
    y = registry.call("grouped_gemm", x, weights, torch.tensor(offsets, dtype=dtype))
    assert isinstance(y, Tensor)
    return y, right


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(
    "offsets",
    [[0, 2, 2, 6], [2, 3, 5], [0, 0, 0], [6, 6], [-3, 4, 99], [0, 6], [1, 1, 1, 1, 4]],
    ids=str,
)
@pytest.mark.parametrize("name", ["torch.native", "torch.grouped_mm"])
def test_rows_belong_to_whom_the_offsets_say(name: str, offsets: list[int], dtype: torch.dtype) -> None:
    with registry.using(grouped_gemm=name):
        torch.testing.assert_close(*call(offsets, dtype=dtype))


@pytest.mark.parametrize("name", ["torch.native", "torch.grouped_mm"])
def test_no_rows_are_no_work(name: str) -> None:
    with registry.using(grouped_gemm=name):
        assert call([0, 0, 0], rows=0)[0].shape == (0, 24)


def test_no_rows_have_gradients_of_0() -> None:
    weights = torch.randn(2, 24, 16, requires_grad=True)
    registry.call("grouped_gemm", torch.empty(0, 16), weights, torch.zeros(3, dtype=torch.int32)).sum().backward()
    assert weights.grad is not None
    assert weights.grad.equal(torch.zeros(2, 24, 16))


def test_gradients_are_right() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weights = (
        torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in ((7, 3), (4, 2, 3))
    )
    offsets = torch.tensor([1, 3, 3, 5, 6])
    assert torch.autograd.gradcheck(lambda *given: registry.call("grouped_gemm", *given, offsets), (x, weights))


@pytest.mark.parametrize("needs", [(True, False), (False, True)], ids=str)
def test_a_gradient_that_nobody_needs_is_left_out(needs: tuple[bool, bool]) -> None:
    problem = GROUPED_GEMM_BACKWARD.problem_of(
        {"m": 12, "n": 16, "k": 16, "experts": 3, "routing": "skewed", "dtype": "float32"}
    )
    values = GROUPED_GEMM_BACKWARD.draw(problem, "normal", torch.Generator().manual_seed(0))[:4]
    both = as_tuple(GROUPED_GEMM_BACKWARD.reference(*values))
    for name in ("torch.native", "torch.grouped_mm"):
        with registry.using(grouped_gemm_backward=name):
            found = registry.call("grouped_gemm_backward", *values, need_x=needs[0], need_weights=needs[1])
        for one, needed, whole in zip(found, needs, both, strict=True):
            assert one.shape == (whole.shape if needed else (0,))
            assert not needed or torch.allclose(one, whole, atol=1e-5)


X, W, ENDS = torch.randn(6, 16), torch.randn(3, 24, 16), torch.tensor([0, 2, 2, 6], dtype=torch.int32)
WRONG = [
    ((X, W, ENDS[:3]), r"offsets has shape 3 but there are 3 experts\n  expected \[4\]"),
    ((X, W, ENDS.float()), "offsets is float32, expected int32 or int64"),
    ((X, W, ENDS.to(torch.int16)), "offsets is int16, expected int32 or int64"),
    ((X, W[0], ENDS), r"weights has shape 24x16\n  expected \[experts, n, k\]"),
    ((X, W[:0], ENDS[:1]), "weights has shape 0x24x16"),
    ((X[:, :15], W, ENDS), r"x has shape 6x15 but weights are 3x24x16\n  expected \[m, 16\]"),
    ((X[None], W, ENDS), "x has shape 1x6x16"),
    ((X.half(), W, ENDS), "x is float16 but weights is float32"),
    ((X.int(), W.int(), ENDS), "x is int32, expected float32"),
]


@pytest.mark.parametrize(("given", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_call_is_refused(given: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"grouped_gemm: {message}"):
        registry.call("grouped_gemm", *given)


def test_a_gradient_of_another_shape_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="grad_y is 6x16 but y is 6x24"):
        registry.call("grouped_gemm_backward", X, X, W, ENDS)
