"""Contracts of the usual families, made by builders, agree with themselves and refuse what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import registry
from registry import InvalidArgumentError, InvalidDefinitionError, gemm_op, rows_op
from registry.testing import check_op

LAYER_NORM = rows_op(
    "acme::layer_norm(Tensor x, Tensor weight, Tensor? bias=None, float eps=1e-5) -> Tensor y",
    lambda x, weight, bias, eps: torch.nn.functional.layer_norm(
        x.float() if x.itemsize < 4 else x,
        x.shape[-1:],
        weight.to(torch.promote_types(x.dtype, torch.float32)),
        None if bias is None else bias.to(torch.promote_types(x.dtype, torch.float32)),
        eps,
    ).to(x.dtype),
    flop=8,
)
LINEAR = gemm_op(
    "acme::linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor y",
    torch.nn.functional.linear,
)


def test_an_op_on_rows_is_made_in_a_few_lines() -> None:
    report = check_op(LAYER_NORM, problems=[{"rows": 5, "cols": 129, "dtype": "float32", "bias": True}])
    assert report.ok
    problem = LAYER_NORM.problem_of({"rows": 4, "cols": 8, "dtype": "bfloat16", "bias": True})
    assert LAYER_NORM.floor(problem) == registry.Floor(bytes=2 * (2 * 32 + 2 * 8), flop=8 * 32)
    without = LAYER_NORM.problem_of({**problem.dims, "bias": False})
    assert LAYER_NORM.floor(without).bytes == 2 * (2 * 32 + 8)
    posed = LAYER_NORM.pose(LAYER_NORM.arguments(LAYER_NORM.bind((torch.ones(2, 3, 8), torch.ones(8)), {})))
    assert dict(posed.dims) == {"rows": 6, "cols": 8, "dtype": "float32", "bias": False}


def test_a_matrix_product_is_made_in_a_few_lines() -> None:
    assert check_op(LINEAR, problems=[{"m": 3, "n": 33, "k": 257, "dtype": "float32", "bias": True}]).ok
    problem = LINEAR.problem_of({"m": 2, "n": 3, "k": 4, "dtype": "float32", "bias": True})
    assert LINEAR.floor(problem) == registry.Floor(bytes=4 * (8 + 12 + 3 + 6), flop=48)
    assert LINEAR.weights == {"weight"}


def test_a_flag_is_a_dimension_and_checked_both_ways() -> None:
    schema = "acme::running_sum(Tensor x, bool reverse=False) -> Tensor y"

    def running_sum(x: torch.Tensor, reverse: bool) -> torch.Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (wide.flip(-1).cumsum(-1).flip(-1) if reverse else wide.cumsum(-1)).to(x.dtype)

    op = rows_op(schema, running_sum)
    assert {example["reverse"] for example in op.examples} == {False, True}
    posed = op.pose(op.arguments(op.bind((torch.ones(2, 8), True), {})))
    assert dict(posed.dims) == {"rows": 2, "cols": 8, "dtype": "float32", "reverse": True}
    _, drawn = op.draw(posed, "normal", torch.Generator().manual_seed(1))
    assert drawn is True


def test_an_argument_that_cannot_be_drawn_is_refused_when_the_op_is_made() -> None:
    with pytest.raises(registry.RegistryError, match=r"k has no default[^\n]*\n  give k a default in the schema"):
        rows_op("acme::first(Tensor x, int k) -> Tensor y", lambda x, k: x * (x > k))


def _modulated(x: torch.Tensor, weight: torch.Tensor, mode: str) -> torch.Tensor:
    y = x.to(torch.promote_types(x.dtype, torch.float32)) * weight
    return (y.tanh() if mode == "tanh" else y).to(x.dtype)


@pytest.mark.parametrize("default", ["", "='full'"])
def test_a_text_of_choices_is_a_dimension_and_checked_for_each(default: str) -> None:
    schema = f"acme::modulate(Tensor x, Tensor weight, str mode{default}) -> Tensor y"
    op = rows_op(schema, _modulated, choices={"mode": ("full", "tanh")})
    assert {example["mode"] for example in op.examples} == {"full", "tanh"}
    posed = op.pose(op.arguments(op.bind((torch.ones(2, 8), torch.ones(8), "tanh"), {})))
    assert dict(posed.dims) == {"rows": 2, "cols": 8, "dtype": "float32", "mode": "tanh"}
    assert op.draw(posed, "normal", torch.Generator().manual_seed(1))[2] == "tanh"
    assert check_op(
        op, problems=[{"rows": 3, "cols": 9, "dtype": "float32", "mode": mode} for mode in op.choices["mode"]]
    ).ok
    with pytest.raises(InvalidArgumentError, match=r"mode must be one of full, tanh, got 'tan'\n  did you mean tanh"):
        op.pose(op.arguments(op.bind((torch.ones(2, 8), torch.ones(8), "tan"), {})))


def test_an_integer_that_is_named_as_a_dimension_is_posed_and_may_be_negative() -> None:
    op = rows_op(
        "acme::shifted(Tensor x, int position) -> Tensor y",
        lambda x, position: x + position,
        dynamic=frozenset({"rows", "position"}),
        examples=({"rows": 2, "cols": 5, "position": -3, "dtype": "float32"},),
    )
    posed = op.pose(op.arguments(op.bind((torch.ones(2, 8), -3), {})))
    assert dict(posed.dims) == {"rows": 2, "cols": 8, "dtype": "float32", "position": -3}
    assert check_op(op).ok


@pytest.mark.parametrize(
    ("make", "schema", "more", "message"),
    [
        (
            rows_op,
            "(Tensor x) -> Tensor y",
            {"tolerence": None},
            "unknown field of Op 'tolerence'\n  did you mean tolera",
        ),
        (rows_op, "(Tensor x, bool cols=False) -> Tensor y", {}, "cols is an argument, and the name of a dimension"),
        (gemm_op, "(Tensor x, Tensor weight, Tensor? n=None) -> Tensor y", {}, "n is an argument, and the name of"),
        (gemm_op, "(Tensor x, Tensor weight, int k=2) -> Tensor y", {}, "k is an argument, and the name of"),
        (rows_op, "(Tensor x, str dtype='float16') -> Tensor y", {}, "dtype is an argument, and the name of"),
        (rows_op, "(Tensor a, Tensor b) -> Tensor c", {}, "no argument is named x or y.*\n  say .* rows=.'a', 'c'"),
        (gemm_op, "(Tensor x) -> Tensor y", {}, "takes x .m, k. and a weight .n, k.*\n  write e.g. acme::made"),
        (
            rows_op,
            "(Tensor x) -> Tensor y",
            {"choices": {"mode": ("a", "b")}},
            "mode is no str or bool",
        ),
        (rows_op, "(Tensor x, str mode) -> Tensor y", {}, "mode has no default.*\n.*or say.*choices="),
        (gemm_op, "(Tensor(a!) x, Tensor weight) -> ()", {}, "takes x .m, k. and a weight"),
    ],
)
def test_what_a_builder_cannot_make_is_refused(make: Any, schema: str, more: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidDefinitionError, match=message):
        make(f"acme::made{schema}", torch.add, **more)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(registry.RegistryError, match=r"weight has shape 7\n  expected \[cols=8\]"):
        LAYER_NORM.pose(LAYER_NORM.arguments(LAYER_NORM.bind((torch.ones(2, 8), torch.ones(7)), {})))
    with pytest.raises(registry.RegistryError, match=r"weight has shape 3x5\n  expected \[n, k=4\]"):
        LINEAR.pose(LINEAR.arguments((torch.ones(2, 4), torch.ones(3, 5), None)))


def test_a_weight_with_more_dimensions_is_refused_before_anything_runs() -> None:
    x, weight = torch.randn(3, 8), torch.randn(2, 4, 8)
    with pytest.raises(InvalidArgumentError, match=r"linear: weight has shape 2x4x8\n  expected \[n, k=8\]"):
        registry.call("linear", x, weight)
    with pytest.raises(InvalidArgumentError, match="weight has shape 2x4x8"):
        registry.call("linear_backward", torch.randn(3, 2), x, weight)


def test_arguments_without_any_tensor_are_refused() -> None:
    op = rows_op("acme::maybe(Tensor? x=None) -> Tensor y", torch.clone)
    arguments = registry.Arguments("acme::maybe", {"x": None})
    with pytest.raises(registry.InvalidArgumentError, match=r"(?s)no tensor is given.*expected x"):
        op.pose(arguments)
