"""fused_linear_cross_entropy_gradients: torch's loss and gradients, what is left out, what it refuses, and mutants."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

import registry
from registry.contracts import FUSED_LINEAR_CROSS_ENTROPY_GRADIENTS
from registry.errors import InvalidArgumentError, UnsupportedError
from registry.problem import Value
from registry.testing import check_op

from ...tiers import one_of_each
from ..accepting import accepted
from ..mutants import Mutant, put, tampered

Tensor = torch.Tensor
OP = FUSED_LINEAR_CROSS_ENTROPY_GRADIENTS
IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["torch.native", "torch.chunked"])


def drawn(rows: int, cols: int, k: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, weight, target and bias."""
    x, weight, bias = torch.randn(rows, k), torch.randn(cols, k) * k**-0.5, torch.randn(cols)
    return x.to(dtype), weight.to(dtype), torch.randint(cols, (rows,)), bias.to(dtype)


def by_torch(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, **given: Any) -> tuple[Tensor, ...]:
    """The loss, and the gradients by what is not None of x, weight and bias."""
    learnt = [each.detach().requires_grad_() for each in (x, weight, bias) if each is not None]
    loss = torch.nn.functional.cross_entropy(torch.nn.functional.linear(*learnt), target, **given)
    return loss, *torch.autograd.grad(loss, learnt)


@IMPLEMENTATIONS
def test_loss_and_gradients_are_those_of_torch(implementation: str) -> None:
    for reduction, ignored, smoothing, biased in itertools.product(
        ("sum", "mean"), (-100, 3), (0.0, 0.1, 1.0), (False, True)
    ):
        x, weight, target, bias = drawn(9, 70, 13)
        target[2] = ignored
        given = {"ignore_index": ignored, "reduction": reduction, "label_smoothing": smoothing}
        with registry.using(**{OP.name: implementation}):
            found = registry.call(OP.name, x, weight, target, bias if biased else None, **given)
        assert found[3].numel() == (70 if biased else 0)
        for one, other in zip(found, by_torch(x, weight, target, bias if biased else None, **given), strict=False):
            torch.testing.assert_close(one, other)


@IMPLEMENTATIONS
def test_gradients_that_are_not_needed_are_empty(implementation: str) -> None:
    x, weight, target, bias = drawn(6, 20, 8)
    expected = by_torch(x, weight, target, bias)
    for needs in itertools.product((False, True), repeat=3):
        with registry.using(**{OP.name: implementation}):
            loss, *found = registry.call(OP.name, x, weight, target, bias, -100, "mean", 0.0, *needs)
        torch.testing.assert_close(loss, expected[0])
        for gradient, right, needed in zip(found, expected[1:], needs, strict=True):
            torch.testing.assert_close(gradient, right if needed else x.new_empty(0))


@IMPLEMENTATIONS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_loss_of_halves_is_float32_and_gradients_have_their_dtype(dtype: torch.dtype, implementation: str) -> None:
    x, weight, target, bias = drawn(64, 1000, 33, dtype)
    target[1::2], x[1::2] = -100, math.nan
    with registry.using(**{OP.name: implementation}):
        loss, *gradients = registry.call(OP.name, x, weight, target, bias)
    assert loss.dtype == torch.float32
    right = by_torch(x[::2].double(), weight.double(), target[::2], bias.double())
    assert loss.item() == pytest.approx(right[0].item(), rel=1e-3)
    assert all(each.dtype == dtype and each.isfinite().all() for each in gradients)
    assert not gradients[0][1::2].any()
    for found, exact in zip((gradients[0][::2], *gradients[1:]), right[1:], strict=True):
        assert (found.double() - exact).norm() < 0.01 * exact.norm()


@IMPLEMENTATIONS
def test_no_row_that_counts_has_a_mean_of_nan_and_gradients_of_0(implementation: str) -> None:
    x, weight, _, bias = drawn(3, 5, 4)
    with registry.using(**{OP.name: implementation}):
        for rows, reduction in itertools.product((3, 0), ("mean", "sum")):
            given = x[:rows], weight, torch.full((rows,), -100), bias
            loss, *gradients = registry.call(OP.name, *given, reduction=reduction)
            assert loss.isnan() if reduction == "mean" else loss == 0.0
            assert [each.shape for each in gradients] == [(rows, 4), (5, 4), (5,)]
            assert not any(each.any() for each in gradients)


@IMPLEMENTATIONS
@pytest.mark.parametrize("outside", [33, -1, 2**40])
def test_a_target_outside_of_the_vocabulary_is_nan(outside: int, implementation: str) -> None:
    x, weight, _, _ = drawn(4, 33, 8)
    with registry.using(**{OP.name: implementation}):
        loss, grad_x, grad_weight, _ = registry.call(OP.name, x, weight, torch.tensor([5, outside, 7, 0]))
    assert loss.isnan()
    assert grad_x.isnan().all(-1).tolist() == [False, True, False, False]
    assert grad_weight.isnan().all()


def test_what_does_not_fit_is_told() -> None:
    x, weight, target, _ = drawn(4, 9, 6)
    with pytest.raises(InvalidArgumentError, match=f"^{OP.name}: reduction must be one of mean, sum, got 'none'"):
        registry.call(OP.name, x, weight, target, reduction="none")
    with pytest.raises(InvalidArgumentError, match=f"^{OP.name}: weight has shape 9x5, expected"):
        registry.call(OP.name, x, weight[:, :5], target)
    with pytest.raises(UnsupportedError, match="an input needs a gradient, but the op has no backward"):
        registry.call(OP.name, x.requires_grad_(), weight, target)


@pytest.mark.thorough
# tests/testing/test_op_check.py asks it of some examples of each op
@pytest.mark.thorough
def test_the_parts_of_the_contract_agree() -> None:
    assert check_op(OP).checked


# --- mutants ---


def _changed(place: int, change: Callable[[Tensor], Tensor]) -> Mutant:
    def compute(*values: Any) -> tuple[Tensor, ...]:
        found = list(OP.reference(*values))
        found[place] = change(found[place].clone())
        return tuple(found)

    return compute


def _last_to_0(tensor: Tensor) -> Tensor:
    tensor[-1:] = 0
    return tensor


def _last_feature_left_out(named: dict[str, Any]) -> None:
    named["x"] = named["x"].clone()
    named["x"][:, -1] = 0


MUTANTS: Mapping[str, Mutant] = {
    "last feature left out": tampered(OP, _last_feature_left_out),
    "target of the next row": tampered(OP, lambda named: named.update(target=named["target"].roll(1))),
    "nothing is ignored but -100": tampered(OP, put(ignore_index=-100)),
    "not smoothed": tampered(OP, put(label_smoothing=0.0)),
    "no bias": tampered(OP, lambda named: named.update(bias=torch.zeros_like(named["bias"]))),
    "half of the loss": _changed(0, lambda loss: loss * 0.5),
    "last row of grad_x": _changed(1, _last_to_0),
    "another row of grad_x": _changed(1, lambda tensor: tensor.roll(1, 0)),
    "last column of grad_weight": _changed(2, _last_to_0),
    "half of grad_weight": _changed(2, lambda tensor: tensor * 0.5),
    "last column of grad_bias": _changed(3, _last_to_0),
}


@pytest.mark.parametrize(
    ("dtype", "shape", "reduction"),
    one_of_each(
        [
            (dtype, shape, reduction)
            for shape in ((7, 1000, 33), (4, 32000, 64))
            for dtype in ("bfloat16", "float32", "float16")
            for reduction in ("mean", "sum")
        ],
        lambda dtype, shape, reduction: 0,
    ),
)
def test_tolerances_accept_the_reference_and_refuse_mutants(
    dtype: str, shape: tuple[int, int, int], reduction: str
) -> None:
    rows, cols, k = shape
    dims: dict[str, Value] = {"rows": rows, "cols": cols, "k": k, "reduction": reduction, "bias": True, "dtype": dtype}
    assert accepted(OP, dims, OP.reference)
    changed = MUTANTS if reduction == "sum" else {**MUTANTS, "not divided": tampered(OP, put(reduction="sum"))}
    for name, mutant in changed.items():
        assert not accepted(OP, dims, mutant), name


def test_a_part_of_many_rows_that_is_left_out_is_refused() -> None:
    """Where sums over rows may be rounded more often."""

    def without_last(*values: Any) -> tuple[Tensor, ...]:
        x, weight, target, *rest = values
        loss, grad_x, *_ = OP.reference(*values)
        _, _, *sums = OP.reference(x[:-64], weight, target[:-64], *rest)
        return loss, grad_x, *sums

    dims: dict[str, Value] = {
        "rows": 2112, "cols": 64, "k": 8, "reduction": "sum", "bias": True, "dtype": "bfloat16",
    }  # fmt: skip
    assert accepted(OP, dims, OP.reference)
    assert not accepted(OP, dims, without_last)
