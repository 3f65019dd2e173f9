"""NaN and infinity in the inputs of ops over rows: where they stand, what is right there, and who is refused for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from registry.contract import Op, as_tuple
from registry.contracts import BOX, GEMM_INT4, RMS_NORM, RMS_NORM_BACKWARD, SOFTMAX, SOFTMAX_BACKWARD, fills
from registry.correctness import numerics
from registry.correctness.bits import same_bits
from registry.correctness.bounds import bounds_of
from registry.dispatch.plans.plan import Candidate, build
from registry.errors import CheckError
from registry.problem import Problem, Value
from registry.testing import check_implementation
from registry.tuner.verify.session import Session
from registry.tuner.verify.verify import WrongError, verify

from ..tuner.going_through import CPU, PROTOCOL, Custom

Tensor = torch.Tensor
OPS = (SOFTMAX, RMS_NORM, GEMM_INT4, SOFTMAX_BACKWARD, RMS_NORM_BACKWARD)
KIND = {
    "softmax": "masked",
    "rms_norm": "near_zero",
    "gemm_int4": "groups",
    "softmax_backward": "shifted",
    "rms_norm_backward": "near_zero",
}
PER_OP = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)


def problem_of(op: Op, rows: int = 9, dtype: str = "bfloat16") -> Problem:
    dims: dict[str, Value] = {"rows": rows, "cols": 40, "dtype": dtype}
    if op is GEMM_INT4:
        dims = {"m": rows, "n": 24, "k": 64, "group_size": 32, "bits": 4, "dtype": dtype, "symmetric": False}
    return op.problem_of(dims)


def drawn(op: Op, kind: str, seed: int = 0, rows: int = 9, dtype: str = "bfloat16") -> tuple[Any, ...]:
    return op.bind(op.inputs(problem_of(op, rows, dtype), kind, torch.Generator().manual_seed(seed)), {})


def is_floating(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def floating(values: tuple[Any, ...]) -> list[Tensor]:
    return [value for value in values if is_floating(value)]


def one_place(where: Tensor) -> tuple[int, int]:
    """Row and column of the only place that is True."""
    assert where.sum() == 1
    row, col = where.nonzero()[0].tolist()
    return row, col


@PER_OP
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.few(5)
def test_one_row_has_a_nan_and_all_others_what_they_had(op: Op, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if op is GEMM_INT4 and dtype == "float32":
        pytest.skip("activations are half precision")
    planted = [drawn(op, KIND[op.name], seed, dtype=dtype) for seed in range(9)]
    monkeypatch.setattr(fills, "plant_in_rows", lambda x, *_: x)
    for seed, values in enumerate(planted):
        first, *others = zip(floating(values), floating(drawn(op, KIND[op.name], seed, dtype=dtype)), strict=True)
        assert all(same_bits(*pair) for pair in others)
        x, before = first
        row, _ = one_place(x.isnan())
        assert not before.isnan().any()
        assert not (before == torch.inf).any()
        changed = {row}
        if op is SOFTMAX:
            changed.add(one_place(x == torch.inf)[0])
            assert len(changed) == 2
        assert (x != before).any(1).nonzero().view(-1).tolist() == sorted(changed)
        assert int((x != before).sum()) == len(changed)


@PER_OP
@pytest.mark.few(2)
def test_any_row_and_column_may_have_them(op: Op) -> None:
    where = [one_place(drawn(op, KIND[op.name], seed)[0].isnan()) for seed in range(200)]
    assert {row for row, _ in where} == set(range(9))
    assert len({col for _, col in where}) > 30


@PER_OP
def test_few_rows_and_the_timed_kind_have_none(op: Op) -> None:
    for rows, kind in ((1, KIND[op.name]), (3, KIND[op.name]), (9, op.kinds[0])):
        for value in floating(drawn(op, kind, rows=rows)):
            assert not value.isnan().any()
            assert not (value == torch.inf).any()
    assert drawn(op, KIND[op.name], rows=4)[0].isnan().any()


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["some", "all"])
def test_rows_are_made_without_a_look_at_them(every: bool) -> None:
    """Of each kind and, in turn, of one kind of each op; of the ops after the first of a kind it is filled alike."""
    seen: set[str] = set()
    for place, op in enumerate(BOX):
        some = {kind for kind in op.kinds if kind not in seen} | {op.kinds[place % len(op.kinds)]}
        seen |= some
        for kind in op.kinds if every else some:
            problem = op.problem_of(op.examples[-1])
            # raises where Python needs to know a number, which a GPU would be waited for
            with FakeTensorMode():
                op.inputs(problem, kind, torch.Generator())


# --- what is right ---


@PER_OP
def test_the_reference_is_nan_in_those_rows_alone(op: Op) -> None:
    for seed in range(5):
        values = drawn(op, KIND[op.name], seed)
        row, col = one_place(values[0].isnan())
        spoilt = {row} | ({one_place(values[0] == torch.inf)[0]} if op is SOFTMAX else set())
        y, *rest = numerics.reference64(op, values)
        expected = torch.zeros_like(y, dtype=torch.bool)
        expected[sorted(spoilt)] = True
        assert torch.equal(y.isnan(), expected)
        assert torch.equal(~y.isfinite(), expected)
        for grad_weight in rest:
            assert (~grad_weight.isfinite()).nonzero().view(-1).tolist() == [col]


@PER_OP
def test_bounds_know_where_nan_belongs(op: Op) -> None:
    problem, values = problem_of(op), drawn(op, KIND[op.name])
    reference = numerics.reference64(op, values)
    own = numerics.own_error(op, problem, values, reference)
    for output, bounds in zip(
        as_tuple(op.reference(*values)), bounds_of(op, problem, values, reference, own), strict=True
    ):
        assert bounds.has_nan
        assert bounds.holding(output)
        assert not bounds.holding(output.nan_to_num(0.0))
        astray = output.clone()
        astray[~output.isnan()] = torch.nan
        assert not bounds.holding(astray)


# --- who is refused ---


def swallowing(op: Op, nan: float = 0.0, posinf: float = torch.inf) -> Callable[..., None]:
    """Right, but that it takes another number for each NaN, or for each infinity, of its inputs."""

    def compute(*values: Any) -> None:
        outputs, arguments = values[: len(op.parsed.outputs)], values[len(op.parsed.outputs) :]
        clean = [value.nan_to_num(nan, posinf, -torch.inf) if is_floating(value) else value for value in arguments]
        for output, result in zip(outputs, as_tuple(op.reference(*clean)), strict=True):
            output.copy_(result)

    return compute


SWALLOWERS = [pytest.param(op, swallowing(op), id=op.name) for op in OPS]
SWALLOWERS.append(pytest.param(SOFTMAX, swallowing(SOFTMAX, torch.nan, 1e4), id="softmax, infinity"))


@pytest.mark.parametrize(("op", "swallow"), SWALLOWERS)
@pytest.mark.few(3)
def test_who_swallows_it_is_refused_by_the_check_of_implementations(op: Op, swallow: Callable[..., None]) -> None:
    right = Custom(op.name, swallowing(op, torch.nan))
    check_implementation(right, op, problems=[problem_of(op)], device="cpu")
    with pytest.raises(CheckError, match=rf"{KIND[op.name]} inputs: .* expected nan: not allowed at all"):
        check_implementation(Custom(op.name, swallow), op, problems=[problem_of(op)], device="cpu")


@pytest.mark.parametrize(("op", "swallow"), SWALLOWERS)
def test_who_swallows_it_is_refused_by_the_tuner(op: Op, swallow: Callable[..., None]) -> None:
    session = Session(op, problem_of(op), CPU, PROTOCOL, 7)

    def plan_of(function: Callable[..., None]) -> Any:
        return build(op, Candidate(Custom(op.name, function), {}), session.problem, session.arguments, CPU)

    verify(plan_of(swallowing(op, torch.nan)), session)
    with pytest.raises(WrongError, match=rf"{KIND[op.name]} inputs: .* expected nan: not allowed at all"):
        verify(plan_of(swallow), session)
