"""top_k_top_p_sampling: which tokens are kept, how often they come, what it refuses, and mutants that are refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

import registry
from registry.contracts import TOP_K_TOP_P_SAMPLING as OP
from registry.contracts.sampling.kept_tokens import thresholds
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.errors import CheckError, InvalidArgumentError, OutOfRangeError, UnsupportedError
from registry.testing import check_frequencies

from ...tiers import one_of_each
from ..accepting import accepted

Tensor = torch.Tensor
NAMES = ("torch.native", "cpp.select", "reference")
COUNT = 2**15
"""Samples by which frequencies are judged."""


def run(name: str, logits: Tensor, uniform: Tensor, top_k: Any = None, top_p: Any = None) -> Tensor:
    if name == "reference":
        (values, _) = OP.flatten(logits, uniform, top_k, top_p)  # type: ignore[misc]
        found = OP.reference(*values)
    else:
        with registry.using(top_k_top_p_sampling=name):
            found = registry.call(OP.name, logits, uniform, top_k, top_p)
    assert isinstance(found, Tensor)
    assert found.dtype == torch.int32
    return found


def kept_by_hand(row: list[float], top_k: int | None, top_p: float | None) -> list[float]:
    """Each token's probability, one after another from the most probable."""
    order = sorted(range(len(row)), key=lambda token: -row[token])
    if top_k is not None and top_k < len(row):
        order = [token for token in order if row[token] >= row[order[top_k - 1]]]
    mass = sum(math.exp(row[token]) for token in order)
    if top_p is not None and top_p < 1:
        share, least = 0.0, math.inf
        for token in order:
            if share >= top_p:
                break
            share += math.exp(row[token]) / mass
            least = row[token]
        order = [token for token in order if row[token] >= least]
        mass = sum(math.exp(row[token]) for token in order)
    return [math.exp(value) / mass if token in order else 0.0 for token, value in enumerate(row)]


ROW = [0.3, 2.0, -1.0, 1.1, 2.0, 0.9, -math.inf, 1.6, 0.0, -2.0, 0.5, 1.1]
FILTERS = ((None, None), (3, None), (4, None), (None, 0.6), (6, 0.7), (1, 0.9), (100, 1.0), (5, 0.01))


@pytest.mark.parametrize(("name", "top_k", "top_p"), one_of_each(
    [(name, *filters) for name in NAMES for filters in FILTERS], lambda name, *filters: (name, filters[0] is None)
))  # fmt: skip
def test_the_uniform_number_is_a_place_in_the_running_sum_of_what_is_kept(
    name: str, top_k: int | None, top_p: float | None
) -> None:
    kept = torch.tensor(kept_by_hand(ROW, top_k, top_p), dtype=torch.float64)
    ends = kept.cumsum(0)
    # the middle of each kept token's part, and places near both ends of it
    tokens = kept.nonzero()[:, 0].repeat(3)
    places = torch.cat([ends - kept * share for share in (0.5, 0.999, 0.001)])[(kept > 0).repeat(3)]
    logits = torch.tensor(ROW).expand(len(places), -1).contiguous()
    assert run(name, logits, places.float(), top_k, top_p).tolist() == tokens.tolist()


@pytest.mark.parametrize(("name", "top_k", "top_p"), one_of_each(
    [(name, *filters) for name in NAMES for filters in ((4, None), (None, 0.6), (5, 0.75))], lambda name, *_: name
))  # fmt: skip
def test_tokens_come_as_often_as_their_probabilities(name: str, top_k: int | None, top_p: float | None) -> None:
    logits = torch.tensor(ROW).expand(COUNT, -1).contiguous()
    uniform = torch.rand(COUNT, generator=torch.Generator().manual_seed(5))
    found = run(name, logits, uniform, top_k, top_p)
    check_frequencies(found, torch.tensor(kept_by_hand(ROW, top_k, top_p)))
    # one that leaves out a filter, or applies it alone, is found by its frequencies
    for other in {(None, top_p), (top_k, None), (None, None)} - {(top_k, top_p)}:
        with pytest.raises(CheckError, match="which has the probability 0"):
            check_frequencies(run(name, logits, uniform, *other), torch.tensor(kept_by_hand(ROW, top_k, top_p)))


@pytest.mark.parametrize("name", NAMES)
def test_each_row_has_its_own_filters_or_all_rows_one(name: str) -> None:
    logits, uniform = torch.randn(6, 50), torch.rand(6)
    top_k, top_p = torch.tensor([1, 2, 50, 7, 50, 3], dtype=torch.int32), torch.tensor([0.5, 1.0, 0.9, 0.2, 1.0, 0.8])
    alone = [
        run(name, logits[row : row + 1], uniform[row : row + 1], int(top_k[row]), float(top_p[row])) for row in range(6)
    ]
    assert torch.equal(run(name, logits, uniform, top_k, top_p), torch.cat(alone))
    same = run(name, logits, uniform, 5, 0.75)
    given = torch.tensor([5], dtype=torch.int32), torch.tensor(0.75)
    assert torch.equal(run(name, logits, uniform, *given), same)
    assert torch.equal(run(name, logits, uniform, given[0].expand(6), given[1].repeat(6)), same)


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_have_no_distribution_give_some_column(name: str) -> None:
    logits = torch.randn(4, 9)
    logits[0], logits[1, 3], logits[2, 4] = -torch.inf, torch.nan, torch.inf
    found = run(name, logits, torch.tensor([0.0, 0.5, 0.9, 0.3]), 3, 0.5)
    assert ((found >= 0) & (found < 9)).all()


@pytest.mark.parametrize("name", NAMES)
def test_numbers_at_the_ends_draw_the_first_and_the_last_token_that_is_kept(name: str) -> None:
    logits = torch.tensor([[-torch.inf, 1.0, 1.0, -torch.inf, 1.0, -torch.inf]]).repeat(2, 1)
    assert run(name, logits, torch.tensor([0.0, 1 - 2**-24])).tolist() == [1, 4]


def test_a_gradient_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="top_k_top_p_sampling"):
        registry.call(OP.name, torch.randn(2, 5, requires_grad=True), torch.rand(2))


SMALL: Mapping[str, Any] = {"rows": 40, "cols": 200, "top_k": True, "top_p": True}


def _of(change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Callable[..., Any]:
    """The reference with arguments by ``change(named)``, which returns those that differ."""

    def compute(*values: Any) -> Any:
        named = dict(zip(OP.parsed.names, values, strict=True))
        return OP.reference(**{**named, **change(named)})

    return compute


def _shares_of_all(logits: Tensor, uniform: Tensor, top_k: Tensor, top_p: Tensor) -> Any:
    """top_p of all tokens, and then top_k."""
    most = logits.float() - logits.float().logsumexp(-1, keepdim=True)
    ordered = most.sort(-1, descending=True).values
    masses = ordered.exp().cumsum(-1)
    needed = (masses - ordered.exp() < top_p[:, None]).sum(-1, keepdim=True).clamp_min(1)
    kept = most.masked_fill(most < ordered.gather(-1, needed - 1), -torch.inf)
    return OP.reference(kept, uniform, top_k, None)


def _one_tie_alone(logits: Tensor, uniform: Tensor, top_k: Tensor, top_p: Tensor) -> Any:
    """As a sort keeps them: of equal tokens at the edge of top_k some."""
    place = logits.float().sort(dim=-1, descending=True, stable=True).indices
    rank = place.argsort(-1)
    return OP.reference(logits.masked_fill(rank >= top_k[:, None], -torch.inf), uniform, None, top_p)


MUTANTS: Mapping[str, Callable[..., Any]] = {
    "without top_k": _of(lambda _: {"top_k": None}),
    "without top_p": _of(lambda _: {"top_p": None}),
    "a token more": _of(lambda named: {"top_k": (named["top_k"].long() + 1).clamp_max(2**31 - 1).int()}),
    "a token less": _of(lambda named: {"top_k": named["top_k"] - 1}),
    "top_p by a hundredth more": _of(lambda named: {"top_p": (named["top_p"] + 0.01).clamp_max(1.0)}),
    "top_p by a hundredth less": _of(lambda named: {"top_p": named["top_p"] - 0.01}),
    "top_p before top_k": _shares_of_all,
    "some of equal tokens": _one_tie_alone,
    "the most probable token": lambda logits, *_: logits.argmax(-1).int(),
    "the number of another row": _of(lambda named: {"uniform": named["uniform"].roll(1)}),
    "the filters of another row": _of(lambda named: {name: named[name].roll(1) for name in ("top_k", "top_p")}),
    "from the last token on": _of(lambda named: {"uniform": 1.0 - named["uniform"]}),
    "the neighbour": lambda *values: (OP.reference(*values) + 1).clamp_max(199),  # type: ignore[operator, union-attr]
    "without the last token": lambda logits, *rest: OP.reference(logits[:, :-1], *rest),
    "logits at half their size": _of(lambda named: {"logits": named["logits"] * 0.5}),
    "outside": lambda logits, *_: torch.full((logits.shape[0],), logits.shape[1], dtype=torch.int32),
}


@pytest.mark.parametrize(("mutant", "dtype"), one_of_each(
    [(name, dtype) for name in MUTANTS for dtype in ("float32", "bfloat16", "float16")], lambda name, _: name
))  # fmt: skip
def test_mutants_are_refused(mutant: str, dtype: str) -> None:
    assert not accepted(OP, {**SMALL, "dtype": dtype}, MUTANTS[mutant])


@pytest.mark.parametrize("dims", one_of_each(
    [{"cols": 500, "rows": 8}, {"top_k": False}, {"top_p": False}, {"cols": 3000, "rows": 8}]
))  # fmt: skip
def test_sums_in_another_order_are_accepted(dims: Mapping[str, Any]) -> None:
    def backwards(logits: Tensor, uniform: Tensor, top_k: Any, top_p: Any) -> Tensor:
        # blocks of 64 are added up one by one in fp32, and then the columns of the block
        weights = (logits - logits.amax(-1, keepdim=True)).exp()
        allowed = thresholds(logits, top_k, top_p)
        kept = torch.nn.functional.pad(weights.masked_fill(logits < allowed, 0.0), (0, -logits.shape[1] % 64))
        blocks = kept.unflatten(-1, (-1, 64))
        total = torch.zeros(len(kept))
        for block in blocks.unbind(1):
            total = total + block.flip(-1).sum(-1)
        masses = kept.double().cumsum(-1).float()
        last = kept.shape[1] - 1 - (kept > 0).flip(-1).int().argmax(-1)
        passed = (masses <= (uniform * total)[:, None]).sum(-1)
        return torch.minimum(passed, last).int()

    assert accepted(OP, {**SMALL, **dims, "dtype": "float32"}, backwards)
    assert accepted(OP, {**SMALL, **dims, "dtype": "float16"}, OP.reference)


X, U = torch.randn(2, 5), torch.rand(2)
K, P = torch.tensor([3, 2], dtype=torch.int32), torch.tensor([0.5, 0.9])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((X[0], U), "logits has shape 5, expected"),
        ((X[:, :0], U), "logits has shape 2x0"),
        ((X.int(), U), "logits is int32"),
        ((X, U[:1]), "uniform has shape 1 but logits has 2 rows"),
        ((X, U.double()), "uniform is float64, expected float32"),
        ((X, U, K.long()), "top_k is int64, expected int32"),
        ((X, U, K[None]), "top_k has shape 1x2"),
        ((X, U, None, P.half()), "top_p is float16, expected float32"),
        ((X, U, 0), "top_k=0"),
        ((X, U, -1), "top_k=-1"),
        ((X, U, True), "top_k=True"),
        ((X, U, 2.5), "top_k=2.5"),
        ((X, U, None, 0.0), "top_p=0.0"),
        ((X, U, None, 1.5), "top_p=1.5"),
        ((X, U, None, math.nan), "top_p=nan"),
    ],
)
def test_what_it_refuses(args: tuple[object, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        registry.call(OP.name, *args)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"uniform": torch.tensor([0.5, 1.0])}, r"uniform\[1\] is 1.0, expected at least 0 and below 1"),
        ({"uniform": torch.tensor([math.nan, 0.5])}, r"uniform\[0\] is nan"),
        ({"top_k": K * 0}, r"top_k\[0\] is 0, expected at least 1, and 1 more"),
        ({"top_p": P * 2}, r"top_p\[1\] is 1.7"),
        ({}, ""),
    ],
)
def test_numbers_that_none_may_be_are_found_where_data_are_checked(
    change: Mapping[str, Tensor], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_CHECK", "1")
    # data are checked before any kernel runs: none in C++ is compiled for it
    monkeypatch.setenv("CXX", "no-such-compiler")
    call = Dispatcher(Catalog()).op(OP.name)
    named = {"logits": X, "uniform": U, "top_k": K, "top_p": P, **change}
    if not message:
        call(*named.values())
        return
    with pytest.raises(OutOfRangeError, match=message):
        call(*named.values())
