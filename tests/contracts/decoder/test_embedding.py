"""embedding: torch's rows and gradients, padding, what it refuses, and mutants that its tolerances refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck

import registry
from registry.contracts import EMBEDDING, EMBEDDING_BACKWARD
from registry.contracts.decoder.embedding_indices import FREQUENCIES, draw_indices, rows_met
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.errors import InvalidArgumentError, OutOfRangeError

from ...tiers import one_of_each
from ..accepting import accepted

Tensor = torch.Tensor
DTYPES = ("float32", "bfloat16", "float16")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,)], ids=str)
def test_rows_are_those_of_torch(dtype: str, kind: torch.dtype, shape: tuple[int, ...]) -> None:
    weight = torch.randn(9, 7).to(getattr(torch, dtype))
    weight[3, :2] = torch.tensor([torch.nan, -0.0])
    indices = torch.randint(9, shape).to(kind)
    found = registry.call("embedding", indices, weight)
    right = torch.nn.functional.embedding(indices, weight)
    assert found.shape == right.shape
    assert torch.equal(found.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8))


@pytest.mark.parametrize("padding", [None, 0, 3, -1])
def test_gradients_are_those_of_torch(padding: int | None) -> None:
    indices, slope = torch.randint(6, (3, 11)), torch.randn(3, 11, 4)
    gradients = []
    for embed in (torch.nn.functional.embedding, lambda *given: registry.call("embedding", *given)):
        weight = torch.arange(24.0).view(6, 4).requires_grad_()
        embed(indices, weight, padding).backward(slope)
        gradients.append(weight.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


def test_gradients_pass_gradcheck() -> None:
    weight, indices = torch.randn(4, 3, dtype=torch.float64, requires_grad=True), torch.tensor([3, 0, 3])
    assert gradcheck(lambda each: registry.call("embedding", indices, each), (weight,))


def test_a_transposed_weight() -> None:
    weight, indices = torch.randn(5, 8).T, torch.tensor([7, 0])
    found = registry.call("embedding", indices, weight)
    assert torch.equal(found, weight[indices])
    assert found.is_contiguous()


@pytest.mark.parametrize("frequency", FREQUENCIES)
def test_indices_are_as_frequent_as_the_floor_expects(frequency: str) -> None:
    problem = EMBEDDING.problem_of({**SMALL, "rows": 4000, "vocabulary": 3000, "frequency": frequency})
    drawn = draw_indices(problem, torch.Generator().manual_seed(0))
    assert 0 <= int(drawn.min()) <= int(drawn.max()) < 3000
    assert len(drawn.unique()) == pytest.approx(rows_met(4000, 3000, frequency), rel=0.05)
    assert (int((drawn == 0).sum()) > 100) == (frequency == "skewed")


SMALL: Mapping[str, Any] = {"rows": 90, "cols": 20, "vocabulary": 12, "frequency": "uniform", "dtype": "float32"}
FORWARD: Mapping[str, Callable[..., Any]] = {
    "the next row": lambda i, w, p: EMBEDDING.reference((i + 1) % w.shape[0], w),
    "the row before for the last": lambda i, w, p: EMBEDDING.reference(i.clamp_max(w.shape[0] - 2), w),
    "the token before": lambda i, w, p: EMBEDDING.reference(i.roll(1), w),
    "0 for padding": lambda i, w, p: EMBEDDING.reference(i, w).masked_fill((i == w.shape[0] - 1)[:, None], 0.0),
    "the last column left out": lambda i, w, p: EMBEDDING.reference(i, w) * (torch.arange(20) < 19),
    "in bfloat16": lambda i, w, p: EMBEDDING.reference(i, w).bfloat16().float(),
}


def _sum_in(dtype: torch.dtype) -> Callable[..., Tensor]:
    """Terms are added one after another in ``dtype``."""

    def compute(g: Tensor, i: Tensor, w: Tensor, p: int | None) -> Tensor:
        total = torch.zeros(w.shape, dtype=dtype)
        for row, index in zip(g, i.tolist(), strict=True):
            total[index] += row.to(dtype)
        if p is not None:
            total[p] = 0.0
        return total.to(w.dtype)

    return compute


def _last_kept(g: Tensor, i: Tensor, w: Tensor, p: int | None) -> Tensor:
    result = torch.zeros_like(w)
    result[i] = g
    return result


def backward(*values: Any) -> Tensor:
    result = EMBEDDING_BACKWARD.reference(*values)
    assert isinstance(result, Tensor)
    return result


BACKWARD: Mapping[str, Callable[..., Any]] = {
    "zeros": lambda g, i, w, p: torch.zeros_like(w),
    "one row of several kept": _last_kept,
    "padding ignored": lambda g, i, w, p: backward(g, i, w, None),
    "padding by its remainder alone": lambda g, i, w, p: backward(g, i, w, None if p is None else abs(p)),
    "without the last row": lambda g, i, w, p: backward(g[:-1], i[:-1], w, p),
    "averaged": lambda g, i, w, p: backward(g, i, w, p) / torch.bincount(i, minlength=12).clamp_min(1)[:, None],
    "entries exchanged": lambda g, i, w, p: backward(g, i, w, p).roll(1, 0),
    "the last column left out": lambda g, i, w, p: backward(g, i, w, p) * (torch.arange(20) < 19),
    "summed in bfloat16": _sum_in(torch.bfloat16),
}


@pytest.mark.parametrize("mutant", FORWARD)
def test_mutants_are_refused(mutant: str) -> None:
    assert accepted(EMBEDDING, SMALL, EMBEDDING.reference)
    assert not accepted(EMBEDDING, SMALL, FORWARD[mutant])


@pytest.mark.parametrize(("mutant", "dtype"), one_of_each(
    [(mutant, dtype) for mutant in BACKWARD for dtype in DTYPES], lambda mutant, _: mutant
))  # fmt: skip
def test_mutants_of_the_gradient_are_refused(mutant: str, dtype: str) -> None:
    assert not accepted(EMBEDDING_BACKWARD, {**SMALL, "dtype": dtype}, BACKWARD[mutant])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_serial_sum_is_accepted(dtype: str) -> None:
    assert accepted(EMBEDDING_BACKWARD, {**SMALL, "dtype": dtype}, _sum_in(torch.float32))


PLACES, W = torch.tensor([0, 2]), torch.ones(3, 4)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((PLACES.float(), W), "indices is float32, expected int64 or int32"),
        ((PLACES, W[0]), "weight has shape 4"),
        ((PLACES, W.int()), "weight is int32"),
        ((PLACES, W, 3), "padding_idx=3 but weight has 3 rows"),
        ((PLACES, W, -4), "padding_idx=-4 but weight has 3 rows"),
    ],
)
def test_what_it_refuses(args: tuple[object, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        registry.call("embedding", *args)


def test_a_gradient_of_another_shape_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="grad_y is 2x3 but y is 2x4"):
        registry.call("embedding_backward", torch.ones(2, 3), PLACES, W)


def test_an_index_outside_of_the_weight_is_found_where_data_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_CHECK", "1")
    call = Dispatcher(Catalog()).op("embedding")
    call(PLACES, W)
    for wrong in (3, -1):
        with pytest.raises(OutOfRangeError, match=rf"embedding: indices\[1\] is {wrong}, expected 0 to 2, a row of"):
            call(torch.tensor([0, wrong]), W)
