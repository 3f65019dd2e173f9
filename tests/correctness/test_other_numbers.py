"""Other numbers than the inputs of an op's kinds have: which may change, and which the problem tells."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from registry.contracts import ATTENTION_DECODE, BOX, LAYER_NORM, RMS_NORM
from registry.correctness.other_numbers import other_numbers, reference_of_changed, renumbered, telling_kinds, zeroed
from registry.errors import InvalidDefinitionError

LEFT = {
    **{f"attention{packed}_backward": {"scale", "softcap"} for packed in ("", "_varlen")},
    "fused_add_rms_norm": {"offset"},
}
"""Numbers that tensors of a call, out and lse, were made with; and one that is 0 or 1, both of which inputs have: torch
rounds the sum of another and a weight in halves."""


INDICES = {
    "embedding_backward": "padding_idx",
    **{f"{op}cross_entropy{part}": "ignore_index" for op in ("", "fused_linear_") for part in ("", "_backward")},
    "fused_linear_cross_entropy_gradients": "ignore_index",
}
"""Integers that name an element of an integer tensor."""


def drawn(op: Any, kind: str, place: int = 0) -> tuple[Any, tuple[Any, ...]]:
    problem = op.problem_of(dict(op.examples[place]))
    return problem, op.draw(problem, kind, torch.Generator().manual_seed(3))


@pytest.mark.parametrize("op", BOX, ids=lambda op: op.name)
def test_every_float_attribute_of_the_box_is_tried_with_other_values(op: Any) -> None:
    floats = {one.name for one in op.parsed.parameters if one.kind == "float"}
    named = INDICES.keys() & {op.name}
    assert op.numbers == (floats - LEFT.get(op.name, set())) | {INDICES[name] for name in named}
    if not op.numbers:
        return
    tried = []
    for kind in op.kinds:
        problem, values = drawn(op, kind)
        found = renumbered(op, problem, values, 5)
        tried.append(found is not None)
        changed, _ = found or (values, ())
        pairs = zip(op.parsed.names, values, changed, strict=True)
        assert {name for name, one, other in pairs if one is not other} <= op.numbers
    # smoothed labels give infinite losses where logits are minus infinity; no other row than the one can be padding
    assert tried[0]
    assert tried.count(False) <= 1 + (op.name == "embedding_backward")


def test_numbers_are_near_and_new_for_each_seed() -> None:
    problem, values = drawn(RMS_NORM, "near_zero")
    found = {other_numbers(RMS_NORM, problem, values, seed)[-1] for seed in range(20)}  # type: ignore[index]
    assert len(found) == 20
    assert all(1.15 <= max(eps / values[-1], values[-1] / eps) <= 1.4 for eps in found)


def test_a_number_that_makes_another_problem_stays() -> None:
    names = ATTENTION_DECODE.parsed.names
    for place, has_softcap in ((0, False), (1, True)):
        problem, values = drawn(ATTENTION_DECODE, ATTENTION_DECODE.kinds[0], place)
        changed = other_numbers(ATTENTION_DECODE, problem, values, 1)
        assert changed is not None
        assert 0.05 <= changed[names.index("scale")] <= 0.1
        assert (changed[names.index("softcap")] != values[names.index("softcap")]) is has_softcap
    problem, values = drawn(RMS_NORM, "normal")
    assert other_numbers(replace(RMS_NORM, numbers=frozenset()), problem, values, 1) is None


def test_numbers_of_which_an_op_makes_no_sense_have_no_reference() -> None:
    def within_one(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if eps > 1:
            raise ValueError(f"eps={eps}")
        return x * eps if eps else torch.full_like(x, float("nan"))

    op = replace(RMS_NORM, reference=within_one)
    x, weight = torch.ones(2, 3), torch.ones(3)
    (found,) = reference_of_changed(op, (x, weight, 0.5), (x, weight, 0.25)) or ()
    assert found.dtype == torch.float64
    assert torch.equal(found, 0.25 * x.double())
    assert reference_of_changed(op, (x, weight, 0.5), (x, weight, 1.5)) is None
    assert reference_of_changed(op, (x, weight, 0.5), (x, weight, 0.0)) is None
    assert reference_of_changed(op, (x, weight, 0.0), (x, weight, 0.5)) is None


def test_memory_that_runs_out_says_nothing_about_numbers() -> None:
    def too_large(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    values = torch.ones(2, 3), torch.ones(3), 0.5
    with pytest.raises(torch.OutOfMemoryError):
        reference_of_changed(replace(RMS_NORM, reference=too_large), values, values)


def test_the_kinds_on_which_numbers_tell() -> None:
    for op, kinds in (
        (LAYER_NORM, ("normal", "near_zero")),
        (ATTENTION_DECODE, ATTENTION_DECODE.kinds[:1]),
        (replace(RMS_NORM, numbers=frozenset()), ("normal",)),
    ):
        # a row of one column has no variance
        assert telling_kinds(op, lambda kind, op=op: drawn(op, kind, -1)[1]) == kinds  # type: ignore[misc]


def test_what_is_no_float_attribute_is_refused() -> None:
    with pytest.raises(InvalidDefinitionError, match="numbers: unknown number 'weight'"):
        replace(RMS_NORM, numbers=frozenset({"weight"}))
    with pytest.raises(InvalidDefinitionError, match="numbers is 'eps'"):
        replace(RMS_NORM, numbers="eps")  # type: ignore[arg-type]


def test_one_number_is_zero_where_the_op_makes_sense_of_it() -> None:
    problem, values = drawn(ATTENTION_DECODE, "normal")
    # that there is no softcap, which 0 means, the problem tells
    ((which, call),) = zeroed(ATTENTION_DECODE, problem, values)
    assert which == "zero scale"
    assert call[ATTENTION_DECODE.parsed.names.index("scale")] == 0.0
    problem, values = drawn(RMS_NORM, "near_zero")
    ((which, call),) = zeroed(RMS_NORM, problem, values)
    assert (which, call[-1]) == ("zero eps", 0.0)
    # of rows of zeros none is finite
    assert not list(zeroed(RMS_NORM, problem, (torch.zeros_like(values[0]), *values[1:])))


def test_a_zero_that_the_reference_gets_wrong_in_its_own_dtype_tells_nothing() -> None:
    def cancels(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return x * eps if eps else (x + 2.0**40) - 2.0**40

    problem = RMS_NORM.problem_of({"rows": 3, "cols": 16, "dtype": "float32"})
    values = RMS_NORM.draw(problem, "normal", torch.Generator().manual_seed(3))
    assert list(zeroed(replace(RMS_NORM, reference=lambda x, weight, eps: x * (1 + eps)), problem, values))
    op = replace(RMS_NORM, reference=cancels)
    assert reference_of_changed(op, values, (*values[:-1], 0.0)) is not None
    assert not list(zeroed(op, problem, values))
