"""topk_softmax: vLLM's weights and experts, ties, gradients, what it refuses, and mutants that are refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck

import registry
from registry.contracts import TOPK_SOFTMAX, TOPK_SOFTMAX_BACKWARD
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.errors import InvalidArgumentError, OutOfRangeError

from ...tiers import one_of_each
from ..accepting import accepted

Tensor = torch.Tensor
DTYPES = ("float32", "bfloat16", "float16")
SMALL: Mapping[str, Any] = {"tokens": 13, "experts": 30, "top_k": 4, "renormalize": False, "scoring": "softmax"}


def test_weights_and_experts_of_a_row() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, -1.0]])
    weights, experts = registry.call("topk_softmax", logits, 2)
    torch.testing.assert_close(weights, logits.softmax(-1)[:, [1, 2]])
    assert experts.tolist() == [[1, 2]]
    assert experts.dtype == torch.int32
    weights, _ = registry.call("topk_softmax", logits.bfloat16(), 2, True)
    torch.testing.assert_close(weights, torch.tensor([[3.0, 2.0]]).softmax(-1))
    weights, _ = registry.call("topk_softmax", logits, 3, scoring="sigmoid")
    torch.testing.assert_close(weights, torch.tensor([[3.0, 2.0, 1.0]]).sigmoid())


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("renormalize", [False, True])
def test_gradients_pass_gradcheck(scoring: str, renormalize: bool) -> None:
    logits = torch.randn(3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    assert gradcheck(lambda x: registry.call("topk_softmax", x, 3, renormalize, scoring)[0], (logits,))


def test_experts_have_no_gradient() -> None:
    weights, experts = registry.call("topk_softmax", torch.randn(3, 7, requires_grad=True), 3)
    assert weights.requires_grad
    assert not experts.requires_grad


def _after(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], **given: Any) -> Callable[..., Any]:
    """What ``change`` makes of the reference's results, with other attributes if some are given."""

    def compute(logits: Tensor, *attributes: Any) -> Any:
        named = dict(zip(("top_k", "renormalize", "scoring"), attributes, strict=True))
        return change(*TOPK_SOFTMAX.reference(logits, **{**named, **given}))

    return compute


def _by_rounded_scores(logits: Tensor, top_k: int, *_: Any) -> Any:
    """Experts by scores of half precision, in which different ones are equal."""
    scores = logits.float().softmax(-1)
    experts = scores.to(torch.bfloat16).topk(top_k).indices
    return scores.gather(-1, experts), experts.to(torch.int32)


def _ties_from_the_back(logits: Tensor, top_k: int, renormalize: bool, scoring: str) -> Any:
    weights, experts = TOPK_SOFTMAX.reference(logits.flip(-1), top_k, renormalize, scoring)
    return weights, logits.shape[1] - 1 - experts


MUTANTS: Mapping[str, Callable[..., Any]] = {
    "the next expert": _after(lambda w, e: (w, (e + 1) % 30)),
    "the first expert twice": _after(lambda w, e: (w, torch.cat((e[:, :1], e[:, :-1]), 1))),
    "experts in another order": _after(lambda w, e: (w, e.flip(-1))),
    "weights in another order": _after(lambda w, e: (w.flip(-1), e)),
    "both in rising order": _after(lambda w, e: (w.flip(-1), e.flip(-1))),
    "the last one left out": _after(lambda w, e: (w * (torch.arange(4) < 3), e)),
    "renormalised": _after(lambda w, e: (w, e), renormalize=True),
    "sigmoids": _after(lambda w, e: (w, e), scoring="sigmoid"),
    "another token's": _after(lambda w, e: (w.roll(1, 0), e.roll(1, 0))),
    "beyond the last expert": _after(lambda w, e: (w, e + 30)),
    "weights in bfloat16": _after(lambda w, e: (w.bfloat16().float(), e)),
    "chosen by rounded scores": _by_rounded_scores,
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_refused(mutant: str) -> None:
    assert not accepted(TOPK_SOFTMAX, {**SMALL, "dtype": "float32"}, MUTANTS[mutant])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("renormalize", [False, True])
def test_any_of_the_experts_that_tie_is_accepted(dtype: str, scoring: str, renormalize: bool) -> None:
    dims = {**SMALL, "scoring": scoring, "renormalize": renormalize, "dtype": dtype}
    assert accepted(TOPK_SOFTMAX, dims, TOPK_SOFTMAX.reference)
    assert accepted(TOPK_SOFTMAX, dims, _ties_from_the_back)


def backward(*values: Any) -> Tensor:
    result = TOPK_SOFTMAX_BACKWARD.reference(*values)
    assert isinstance(result, Tensor)
    return result


def _without_the_mean(g: Tensor, x: Tensor, e: Tensor, *_: Any) -> Tensor:
    scores = x.float().softmax(-1)
    return (torch.zeros_like(scores).scatter(-1, e.long(), g) * scores).to(x.dtype)


BACKWARD: Mapping[str, Callable[..., Any]] = {
    "zeros": lambda g, x, *_: torch.zeros_like(x),
    "without the mean": _without_the_mean,
    "renormalised": lambda g, x, e, k, _, s: backward(g, x, e, k, True, s),
    "of sigmoids": lambda g, x, e, k, r, _: backward(g, x, e, k, r, "sigmoid"),
    "gradients in another order": lambda g, *rest: backward(g.flip(-1), *rest),
    "the last choice left out": lambda g, *rest: backward(g * (torch.arange(4) < 3), *rest),
    "the last expert left out": lambda *values: backward(*values) * (torch.arange(30) < 29),
    "in bfloat16": lambda g, x, *rest: backward(g.bfloat16(), x.bfloat16(), *rest).to(x.dtype),
}


@pytest.mark.parametrize(("mutant", "dtype"), one_of_each(
    [(mutant, dtype) for mutant in BACKWARD for dtype in ("float32", "float16")], lambda mutant, _: mutant
))  # fmt: skip
def test_mutants_of_the_gradient_are_refused(mutant: str, dtype: str) -> None:
    assert not accepted(TOPK_SOFTMAX_BACKWARD, {**SMALL, "dtype": dtype}, BACKWARD[mutant])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("renormalize", [False, True])
def test_torchs_gradient_is_accepted(dtype: str, scoring: str, renormalize: bool) -> None:
    dims = {**SMALL, "scoring": scoring, "renormalize": renormalize, "dtype": dtype}

    def by_autograd(g: Tensor, x: Tensor, e: Tensor, *_: Any) -> Tensor:
        wide = x.float().requires_grad_()
        with torch.enable_grad():
            scores = wide.softmax(-1) if scoring == "softmax" else wide.sigmoid()
            weights = scores.gather(-1, e.long())
            weights = weights / weights.sum(-1, keepdim=True) if renormalize else weights
            (gradient,) = torch.autograd.grad(weights, wide, g)
        return gradient.to(x.dtype)

    assert accepted(TOPK_SOFTMAX_BACKWARD, dims, TOPK_SOFTMAX_BACKWARD.reference)
    assert accepted(TOPK_SOFTMAX_BACKWARD, dims, by_autograd)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((torch.ones(4), 2), "router_logits has shape 4"),
        ((torch.ones(2, 4).int(), 2), "router_logits is int32"),
        ((torch.ones(2, 4), 5), "top_k=5 of 4 experts"),
        ((torch.ones(2, 4), 0), "top_k=0 of 4 experts"),
        ((torch.ones(2, 4), 2, False, "tanh"), "scoring"),
    ],
)
def test_what_it_refuses(args: tuple[object, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        registry.call("topk_softmax", *args)


def test_a_softmax_with_nan_is_nan_and_its_experts_are_experts() -> None:
    logits = torch.randn(2, 9)
    logits[1, 4] = math.nan
    weights, experts = registry.call("topk_softmax", logits, 3)
    assert weights[1].isnan().all()
    assert len(set(experts[1].tolist())) == 3
    assert 0 <= int(experts.min()) <= int(experts.max()) < 9


def test_experts_outside_of_the_row_are_found_where_data_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_CHECK", "1")
    call = Dispatcher(Catalog()).op("topk_softmax_backward")
    experts = torch.tensor([[0, 7]], dtype=torch.int32)
    with pytest.raises(OutOfRangeError, match=r"experts\[0, 1\] is 7, expected 0 to 6, an expert"):
        call(torch.ones(1, 2), torch.ones(1, 7), experts, 2)


@pytest.mark.parametrize("renormalize", [False, True])
def test_two_outliers_of_a_row_have_a_half_each(renormalize: bool) -> None:
    """Their exponentials are equal: an error of the sum's logarithm at the size of the logits must not show."""
    logits = torch.zeros(3, 64)
    logits[1, [5, 9]] = 40.0
    with registry.using(topk_softmax="torch.native"):
        weights, experts = registry.call("topk_softmax", logits, 2, renormalize=renormalize)
    assert weights[1].tolist() == [0.5, 0.5]
    assert sorted(experts[1].tolist()) == [5, 9]
