"""fused_add_rms_norm: both results, what it refuses, and mutants that its tolerances refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import registry
from registry.arguments.schema import with_tensors
from registry.contracts import FUSED_ADD_RMS_NORM as OP
from registry.errors import InvalidArgumentError

from ..accepting import accepted

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]
Computation = Callable[..., Pair]


def formula(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, offset: float) -> Pair:
    """The norm and the sum in float64."""
    total = x.double() + residual.double()
    normed = total / (total.square().mean(-1, keepdim=True) + eps).sqrt()
    return normed if weight is None else normed * (weight.double() + offset), total


def close(found: Tensor, right: Tensor) -> None:
    limit = 4 * torch.finfo(found.dtype).eps
    torch.testing.assert_close(found.double(), right, rtol=limit, atol=limit)


@pytest.mark.parametrize("name", ["torch.native", "cpp.rows", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.few(4)
def test_both_are_written_to(name: str, dtype: torch.dtype) -> None:
    for shape in ((3, 33), (2, 3, 16), (5,), (257, 1)):
        for weight, offset in ((dtype, 0.0), (dtype, 1.0), (torch.float32, 1.0), (None, 0.0)):
            x, residual = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
            gain = None if weight is None else torch.randn(shape[-1:]).to(weight)
            normed, total = formula(x, residual, gain, 1e-5, offset)
            if name == "reference":
                assert OP.reference(x, residual, gain, 1e-5, offset) is None
            else:
                with registry.using(fused_add_rms_norm=name):
                    assert registry.call(OP.name, x, residual, gain, 1e-5, offset) is None
            close(x, normed)
            close(residual, total)


def test_rows_may_be_none_or_apart_and_columns_too() -> None:
    x, residual = torch.empty(0, 8), torch.empty(0, 8)
    assert registry.call(OP.name, x, residual, torch.ones(8)) is None
    wide = torch.randn(4, 24)
    before = wide.clone()
    normed, total = formula(wide[:, :7], wide[:, 8:15], None, 1e-6, 0.0)
    registry.call(OP.name, wide[:, :7], wide[:, 8:15])
    close(wide[:, :7], normed)
    close(wide[:, 8:15], total)
    assert torch.equal(wide[:, 15:], before[:, 15:])
    x, residual = torch.randn(6, 4).t(), torch.randn(4, 6)
    normed, total = formula(x, residual, None, 1e-6, 0.0)
    registry.call(OP.name, x, residual)
    close(x, normed)
    close(residual, total)


MUTANTS: dict[str, Computation] = {
    "the residual is left": lambda x, r, *more: (formula(x, r, *more)[0], r.double()),
    "the norm of x alone": lambda x, r, *more: (formula(x, 0 * r, *more)[0], x.double() + r),
    "no offset": lambda x, r, w, eps, _: formula(x, r, w, eps, 0.0),
    "another epsilon": lambda x, r, w, _, offset: formula(x, r, w, 1e-6, offset),
    "the weight of the column before": lambda x, r, w, *more: formula(x, r, w.roll(1), *more),
    "another row": lambda x, r, *more: (formula(x, r, *more)[0].roll(1, 0), x.double() + r),
    "wrong by a hundredth": lambda x, r, *more: (formula(x, r, *more)[0] * 1.01, x.double() + r),
    "without the last column": lambda x, r, w, *more: formula(x[:, :-1], r[:, :-1], w[:-1], *more),
}


DIMS = {"rows": 5, "cols": 258, "weight": True}


def _accepted(dtype: str, compute: Computation) -> bool:
    def write(*values: Any) -> None:
        for target, result in zip(values, compute(*with_tensors(values, torch.clone)), strict=False):
            target[..., : result.shape[-1]] = result

    return accepted(OP, DIMS | {"dtype": dtype}, write)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_tolerances_accept_the_reference_and_refuse_mutants(dtype: str) -> None:
    assert accepted(OP, DIMS | {"dtype": dtype}, OP.reference)
    assert _accepted(dtype, formula)
    for name, mutant in MUTANTS.items():
        assert not _accepted(dtype, mutant), name


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((torch.ones(3, 8), torch.ones(3, 7)), "residual has shape 3x7 but x has 3x8"),
        ((torch.ones(3, 8), torch.ones(3, 8).half()), "x is float32 but residual is float16"),
        ((torch.ones(3, 8), torch.ones(3, 8), torch.ones(7)), "weight has shape 7 but x has 8 columns"),
        ((torch.ones(3, 8), torch.ones(3, 8), torch.ones(8).half()), "x is float32 but weight is float16"),
        ((torch.ones(3, 8), torch.ones(3, 8), None, -1.0), "eps=-1.0"),
        ((torch.ones(3, 8), torch.ones(3, 8), torch.ones(8), 1e-6, float("nan")), "offset=nan"),
        ((torch.ones(3, 8), torch.ones(3, 8), None, 1e-6, 1.0), "offset=1.0 without a weight"),
        ((torch.ones(()), torch.ones(())), "x has no dimension to normalise"),
        ((torch.ones(3, 8), torch.ones(8).expand(3, 8)), "residual is expanded"),
        ((torch.ones(3, 8).int(), torch.ones(3, 8).int()), "x is int32"),
    ],
)
def test_what_it_refuses(args: tuple[object, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        registry.call(OP.name, *args)


def test_a_gradient_is_refused() -> None:
    with pytest.raises(registry.UnsupportedError, match="no backward"):
        registry.call(OP.name, torch.randn(2, 8, requires_grad=True), torch.randn(2, 8))
