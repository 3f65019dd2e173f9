"""Other calls of one problem: which ops have them, and that weights stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from registry.contract import Op
from registry.contracts import (
    APPLY_ROTARY,
    ATTENTION,
    CROSS_ENTROPY,
    LINEAR,
    LINEAR_BACKWARD,
    RMS_NORM,
    RMS_NORM_BACKWARD,
    SOFTMAX,
    SOFTMAX_BACKWARD,
    SQUARE,
)
from registry.correctness.other_views import other_views
from registry.problem import Problem, dtype_name


def shapes(op: Op) -> dict[str, list[tuple[int, ...]]]:
    """The shapes of the tensors of each view of the op's second example."""
    problem = op.problem_of(dict(op.examples[1]))
    values = op.draw(problem, op.kinds[0], torch.Generator().manual_seed(1))
    views = other_views(op, problem, values)
    return {which: [tuple(one.shape) for one in found if isinstance(one, torch.Tensor)] for which, found in views}


def test_rows_have_one_more_dimension_and_weights_have_not() -> None:
    (x,) = shapes(SQUARE)["deeper"]
    assert x[1:] == (1,)
    x, weight = shapes(RMS_NORM)["deeper"]
    assert x[1:] == (1, *weight)
    x, weight = shapes(LINEAR)["deeper"]
    assert (len(x), len(weight)) == (3, 2)


@pytest.mark.parametrize("op", [SOFTMAX, SOFTMAX_BACKWARD], ids=lambda op: op.name)
def test_the_reduced_dimension_is_the_first_one_in_the_middle_or_the_last_one_counted_from_the_front(op: Op) -> None:
    problem = op.problem_of({"rows": 6, "cols": 5, "dtype": "float32"})
    values = op.draw(problem, op.kinds[0], torch.Generator().manual_seed(1))
    views = dict(other_views(op, problem, values))
    assert list(views) == ["deeper", "split", "split-apart", "dim-first", "dim-middle", "dim-last"]
    *tensors, dim = views["dim-first"]
    assert dim == 0
    assert all(one.equal(other.mT) and one.is_contiguous() for one, other in zip(tensors, values, strict=False))
    *tensors, dim = views["dim-middle"]
    assert dim == 1
    assert [one.shape for one in tensors] == len(tensors) * [(2, 5, 3)]
    *tensors, dim = views["dim-last"]
    assert dim == 1
    assert all(one.equal(other) for one, other in zip(tensors, values, strict=False))


def test_rows_are_split_into_two_dimensions_of_all_tensors_that_have_them() -> None:
    problem = APPLY_ROTARY.problem_of({**APPLY_ROTARY.examples[0], "tokens": 36})
    values = APPLY_ROTARY.draw(problem, "normal", torch.Generator().manual_seed(1))
    views = dict(other_views(APPLY_ROTARY, problem, values))
    positions, query, key, _, table, _ = views["split"]
    assert [tuple(one.shape[:2]) for one in (positions, query, key)] == 3 * [(4, 9)]
    assert table.equal(values[4])
    assert views["split-apart"][0].shape == (4, 1, 9)
    *_, heads, width = views["heads-apart"][1].shape
    assert (heads, width) == (problem.heads, problem.head_dim)
    # of a prime number of rows one part has all
    (x, _) = shapes(RMS_NORM)["split"]
    assert x[0] == 1


def test_heads_have_masks_of_their_own_which_all_batches_share() -> None:
    dims = {**ATTENTION.examples[0], "batch": 3, "heads": 4, "kv_heads": 2, "q_len": 5, "kv_len": 8, "mask": "bool"}
    problem = ATTENTION.problem_of(dims)
    values = ATTENTION.draw(problem, "normal", torch.Generator().manual_seed(1))
    ((which, found),) = other_views(ATTENTION, problem, values)
    mask = found[ATTENTION.parsed.names.index("mask")]
    assert (which, mask.shape[:2]) == ("per-head", (1, 4))
    assert not mask[:, :1].equal(mask[:, 1:2])


def masked(mask: Callable[[torch.Tensor], torch.Tensor]) -> Op:
    """An op whose tensor ``mask`` is no mask of attention: one of elements, or of a batch's pixels."""

    def inputs(problem: Problem, _: str, generator: torch.Generator) -> tuple[Any, ...]:
        x = torch.randn(problem.n, 3, 4, 5, generator=generator)
        return x, mask(x), 0.5

    return Op(
        name="masking",
        schema="masking(Tensor x, Tensor mask, float p=0.5) -> Tensor y",
        version=1,
        reference=lambda x, mask, p: torch.where(mask.expand(len(x), *mask.shape[1:]), x, p),
        problem=lambda given: {"n": given.tensor("x").shape[0], "dtype": dtype_name(given.tensor("x").dtype)},
        inputs=inputs,
        floor=SQUARE.floor,
        tolerance=SQUARE.tolerance,
        static=frozenset({"dtype"}),
        dynamic=frozenset({"n"}),
        numbers=frozenset({"p"}),
        kinds=("normal",),
        examples=({"n": 2, "dtype": "float32"},),
    )


@pytest.mark.parametrize(
    "mask",
    [lambda x: x[0, 0, 0] > 0, lambda x: x[0, 0] > 0, lambda x: x > 0, lambda x: x[:, :1, :, :1].mT > 0],
    ids=["elements", "rows", "whole", "pixels"],
)
def test_a_mask_of_another_form_than_attentions_has_none_of_heads(mask: Callable[[torch.Tensor], torch.Tensor]) -> None:
    op = masked(mask)
    problem = op.problem_of({"n": 2, "dtype": "float32"})
    values = op.draw(problem, "normal", torch.Generator().manual_seed(1))
    assert "per-head" not in dict(other_views(op, problem, values))


def test_each_gradient_is_needed_alone_where_it_is_made_at_all() -> None:
    for op, absent in ((RMS_NORM_BACKWARD, {}), (LINEAR_BACKWARD, {"bias": False})):
        needed = ["need_x", "need_weight"]
        problem = op.problem_of({**op.examples[0], **absent})
        values = op.draw(problem, op.kinds[0], torch.Generator().manual_seed(1))
        views = {which: call for which, call in other_views(op, problem, values) if which.endswith(" alone")}
        assert list(views) == [f"{name} alone" for name in needed]  # an absent bias has no gradient
        for name in needed:
            named = dict(zip(op.parsed.names, views[f"{name} alone"], strict=True))
            assert [one for one, value in named.items() if one.startswith("need_") and value] == [name]


@pytest.mark.parametrize("op", [ATTENTION, CROSS_ENTROPY], ids=lambda op: op.name)
def test_an_op_that_takes_no_other_rank_has_none(op: Op) -> None:
    assert shapes(op) == {}
