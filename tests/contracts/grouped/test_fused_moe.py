"""fused_moe: mutants that its tolerance refuses, who the ids say computes, gradients, calls that are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch

import registry
from registry.contract import as_tuple
from registry.contracts import FUSED_MOE
from registry.contracts.grouped.expert_ids import check_ids_data, draw_ids, tokens_of_experts
from registry.contracts.grouped.fused_moe import ACTIVATIONS, fused_moe_reference
from registry.contracts.grouped.routing import ROUTING
from registry.correctness import numerics
from registry.errors import InvalidArgumentError, OutOfRangeError
from registry.problem import Problem, Value

Tensor = torch.Tensor
SIZES: tuple[tuple[int, int, int, int, int, str, str], ...] = (
    (33, 48, 40, 6, 2, "silu", "uniform"),
    (9, 64, 32, 9, 3, "gelu", "skewed"),
    (5, 32, 24, 4, 1, "gelu_tanh", "one_expert"),
)


def dims_of(tokens: int, hidden: int, width: int, experts: int, top_k: int, act: str, routing: str) -> dict[str, Value]:
    sizes: dict[str, Value] = {"tokens": tokens, "hidden": hidden, "intermediate": width, "experts": experts}
    return {**sizes, "top_k": top_k, "activation": act, "routing": routing}


@cache
def problems() -> list[Problem]:
    dtypes = ("float32", "bfloat16")
    return [FUSED_MOE.problem_of({**dims_of(*sizes), "dtype": dtype}) for sizes in SIZES for dtype in dtypes]


@cache
def case(key: str, kind: str) -> tuple[tuple[Any, ...], tuple[Tensor, ...], tuple[float, ...]]:
    problem = next(one for one in problems() if one.key == key)
    values = FUSED_MOE.draw(problem, kind, torch.Generator().manual_seed(7))
    reference = numerics.reference64(FUSED_MOE, values)
    return values, reference, numerics.own_error(FUSED_MOE, problem, values, reference)


def verdicts(problem: Problem, compute: Callable[..., Any]) -> Iterator[numerics.Comparison]:
    for kind in FUSED_MOE.kinds:
        values, reference, own = case(problem.key, kind)
        yield numerics.compare(FUSED_MOE, problem, compute(*values), reference, own, values)


def changed(**change: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    """The reference on arguments of which some are changed."""

    def compute(*values: Any) -> Any:
        named = dict(zip(FUSED_MOE.parsed.names, values, strict=True))
        return fused_moe_reference(**{**named, **{name: new(named) for name, new in change.items()}})

    return compute


def without(name: str, place: tuple[Any, ...]) -> Callable[..., Any]:
    """With 0 at ``place`` of an argument."""

    def new(named: dict[str, Any]) -> Tensor:
        tensor: Tensor = named[name].clone()
        tensor[place] = 0
        return tensor

    return changed(**{name: new})


def swapped_halves(named: dict[str, Any]) -> Tensor:
    return torch.cat(named["w13"].chunk(2, 1)[::-1], 1)


def shifted_rows(*values: Any) -> Any:
    return as_tuple(fused_moe_reference(*values))[0].roll(1, 0)


def last_token_of_an_expert_left_out(*values: Any) -> Any:
    """As a kernel does whose loop over a tile's rows ends one too early."""
    x, w13, w2, weights, ids, activation = values
    fewer = ids.clone()
    for expert in range(w13.shape[0]):
        places = (ids == expert).nonzero()
        if len(places):
            fewer[tuple(places[-1])] = -1
    return fused_moe_reference(x, w13, w2, weights, fewer, activation)


def nobody_is_the_nearest_expert(named: dict[str, Any]) -> Tensor:
    ids: Tensor = named["topk_ids"].clamp(0, named["w13"].shape[0] - 1)
    return ids


def half_accumulators(*values: Any) -> Any:
    """Sums over the intermediate elements in the dtype, eight at a time."""
    x, w13, w2, weights, ids, activation = values
    total = torch.zeros_like(x)
    width = w2.shape[2]
    for at in range(0, width, 8):
        rows = torch.cat((w13[:, at : at + 8], w13[:, width + at : width + at + 8]), 1)
        total += fused_moe_reference(x, rows, w2[:, :, at : at + 8], weights, ids, activation)
    return total


MUTANTS: dict[str, Callable[..., Any]] = {
    "zeros": lambda *values: torch.zeros_like(values[0]),
    "rows of the next token": shifted_rows,
    "last column of x left out": without("x", (slice(None), -1)),
    "last intermediate element left out": without("w2", (slice(None), slice(None), -1)),
    "last output left out": without("w2", (slice(None), -1)),
    "weights of the next expert": changed(w13=lambda named: named["w13"].roll(1, 0)),
    "back by the next expert": changed(w2=lambda named: named["w2"].roll(1, 0)),
    "gate and up exchanged": changed(w13=swapped_halves),
    "all weights 1": changed(topk_weights=lambda named: torch.ones_like(named["topk_weights"])),
    "weights of the next token": changed(topk_weights=lambda named: named["topk_weights"].roll(1, 0)),
    "weights squared": changed(topk_weights=lambda named: named["topk_weights"].square()),
    "no activation": changed(activation=lambda named: "gelu" if named["activation"] == "silu" else "silu"),
    "last token of each expert left out": last_token_of_an_expert_left_out,
    "nobody is the nearest expert": changed(topk_ids=nobody_is_the_nearest_expert),
}
ONLY: dict[str, Callable[[Problem], bool]] = {
    # a softmax over one expert is 1
    "all weights 1": lambda problem: problem.top_k > 1,
    "weights of the next token": lambda problem: problem.top_k > 1,
    "weights squared": lambda problem: problem.top_k > 1,
}


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.few(7)
def test_a_mutant_is_refused_by_some_kind(mutant: str) -> None:
    for problem in problems():
        if mutant not in ONLY or ONLY[mutant](problem):
            found = list(verdicts(problem, MUTANTS[mutant]))
            assert any(not verdict.ok for verdict in found), problem


def test_sums_in_half_precision_are_refused() -> None:
    sizes = dims_of(16, 32, 2048, 3, 2, "silu", "uniform")
    problem = FUSED_MOE.problem_of({**sizes, "dtype": "bfloat16"})
    values = FUSED_MOE.draw(problem, "normal", torch.Generator().manual_seed(7))
    assert not numerics.judged(FUSED_MOE, problem, half_accumulators(*values), values).ok


def token_by_token(*values: Any) -> Any:
    """One expert of one token after the other, every product rounded to the dtype."""
    x, w13, w2, weights, ids, activation = values
    function = {"silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu}.get(activation)
    y = torch.zeros_like(x, dtype=torch.float32)
    for token, places in enumerate(ids.tolist()):
        for place, expert in enumerate(places):
            if 0 <= expert < w13.shape[0]:
                gate, up = (w13[expert] @ x[token]).chunk(2)
                act = torch.nn.functional.gelu(gate, approximate="tanh") if function is None else function(gate)
                y[token] += weights[token, place] * (w2[expert] @ (act * up)).float()
    return y.to(x.dtype)


@pytest.mark.parametrize("problem", problems(), ids=str)
def test_a_right_computation_is_accepted_on_every_kind(problem: Problem) -> None:
    assert [verdict.message for verdict in verdicts(problem, token_by_token) if not verdict.ok] == []


@pytest.mark.parametrize("routing", ROUTING)
def test_no_token_has_an_expert_twice(routing: str) -> None:
    for tokens, experts, top_k in ((1, 8, 2), (7, 3, 3), (64, 128, 8), (9, 5, 1), (4096, 256, 8)):
        sizes = dims_of(tokens, 8, 8, experts, top_k, "silu", routing)
        problem = FUSED_MOE.problem_of({**sizes, "dtype": "float32"})
        counts = tokens_of_experts(problem)
        assert (len(counts), sum(counts), max(counts)) == (experts, tokens * top_k, min(max(counts), tokens))
        ids = draw_ids(problem, torch.Generator().manual_seed(0))
        assert ids.sort(-1).values.diff().ne(0).all()
        assert ids.flatten().long().bincount(minlength=experts).sort().values.tolist() == sorted(counts)


def test_the_floor_reads_the_weights_of_experts_that_have_tokens() -> None:
    for routing, busy in (("uniform", 4), ("one_expert", 2)):
        sizes = dims_of(2, 16, 8, 6, 2, "silu", routing)
        floor = FUSED_MOE.floor(FUSED_MOE.problem_of({**sizes, "dtype": "bfloat16"}))
        assert floor.bytes == 2 * (2 * 2 * 16 + busy * 3 * 8 * 16) + 8 * 4
        assert floor.flop == 2 * 4 * 3 * 8 * 16


X, IDS = torch.randn(5, 16), torch.tensor([[0, 2], [1, 0], [2, 1], [0, 1], [1, 2]], dtype=torch.int32)
W13, W2, WEIGHTS = torch.randn(3, 48, 16) / 4, torch.randn(3, 16, 24) / 5, torch.rand(5, 2)
NAMES = pytest.mark.parametrize("name", ["torch.native", "torch.grouped_mm"])


@NAMES
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_ids_say_who_computes(name: str, activation: str, dtype: torch.dtype) -> None:
    ids = IDS.to(dtype, copy=True)
    ids[1, 0], ids[3] = -1, torch.tensor([3, -1])
    weights = WEIGHTS.clone()
    weights[1, 0] = weights[3, 0] = torch.nan
    with registry.using(fused_moe=name):
        y = registry.call("fused_moe", X, W13, W2, weights, ids, activation=activation)
        mixed = registry.call("fused_moe", X.bfloat16(), W13.bfloat16(), W2.bfloat16(), weights.bfloat16(), ids)
    torch.testing.assert_close(y, token_by_token(X, W13, W2, weights, ids, activation))
    assert y[3].equal(torch.zeros(16))
    assert mixed.dtype == torch.bfloat16
    assert not mixed.isnan().any()


@NAMES
def test_no_tokens_are_no_work(name: str) -> None:
    with registry.using(fused_moe=name):
        assert registry.call("fused_moe", X[:0], W13, W2, WEIGHTS[:0], IDS[:0]).shape == (0, 16)


def test_gradients_are_right() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((4, 3), (3, 4, 3), (3, 3, 2), (4, 2))
    given = [torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes]
    ids = torch.tensor([[0, 2], [1, -1], [2, 0], [3, -1]])
    assert torch.autograd.gradcheck(lambda *values: registry.call("fused_moe", *values, ids), given)


@pytest.mark.parametrize("tokens", [0, 3])
def test_tokens_of_no_expert_have_gradients_of_zeros(tokens: int) -> None:
    sizes = ((tokens, 8), (2, 12, 8), (2, 8, 6), (tokens, 2))
    given = [torch.randn(size, requires_grad=True) for size in sizes]
    ids = torch.full((tokens, 2), -1)
    for y in (fused_moe_reference(*given, ids), registry.call("fused_moe", *given, ids)):
        gradients = torch.autograd.grad(as_tuple(y)[0].sum(), given)
        assert all(torch.equal(gradient, torch.zeros(size)) for gradient, size in zip(gradients, sizes, strict=True))


def drawn_with_gaps(activation: str, dtype: torch.dtype = torch.float64) -> tuple[Any, ...]:
    """Arguments of a call in which some tokens lack an expert and some have none, which are NaN."""
    problem = FUSED_MOE.problem_of({**FUSED_MOE.examples[2], "activation": activation, "dtype": "float32"})
    x, w13, w2, weights, ids, _ = FUSED_MOE.draw(problem, "gaps", torch.Generator().manual_seed(0))
    return *(one.to(dtype) for one in (x, w13, w2, weights)), ids, activation


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_compiled_program_has_the_gradients(activation: str) -> None:
    x, w13, w2, weights, ids, _ = drawn_with_gaps(activation, torch.float32)
    leaves = [one.requires_grad_() for one in (x, w13, w2, weights)]

    def run(ids: Tensor, *given: Tensor) -> Tensor:
        y: Tensor = registry.call("fused_moe", *given, ids, activation)
        return y.square().sum()

    found = torch.autograd.grad(torch.compile(run, fullgraph=True, backend="aot_eager")(ids, *leaves), leaves)
    for one, expected in zip(found, torch.autograd.grad(run(ids, *leaves), leaves), strict=True):
        torch.testing.assert_close(one, expected)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_ids_may_differ_under_vmap(activation: str) -> None:
    x, w13, w2, weights, ids, _ = drawn_with_gaps(activation)
    batch = torch.stack([ids, ids.flip(0)])
    given = [torch.stack([one, one.flip(0)]) for one in (x, weights)]
    run = torch.vmap(lambda x, weights, ids: registry.call("fused_moe", x, w13, w2, weights, ids, activation))
    for y, *each in zip(run(*given, batch), *given, batch, strict=True):
        torch.testing.assert_close(y, registry.call("fused_moe", each[0], w13, w2, *each[1:], activation))


def test_ids_of_nobody_pass_their_check_and_others_do_not() -> None:
    check_ids_data("fused_moe", {"topk_ids": torch.tensor([[-1, 3], [0, 2]]), "w13": W13})
    for wrong in (-2, 4):
        with pytest.raises(OutOfRangeError, match=rf"topk_ids\[1, 0\] is {wrong}, expected 0 to 2, or -1 or 3"):
            check_ids_data("fused_moe", {"topk_ids": torch.tensor([[0, 1], [wrong, 2]]), "w13": W13})


WRONG = [
    ((X, W13, W2[0], WEIGHTS, IDS), r"w2 has shape 16x24\n  expected \[experts, hidden, intermediate\]"),
    ((X, W13[:, :47], W2, WEIGHTS, IDS), r"w13 has shape 3x47x16 but w2 is 3x16x24\n  expected \[3, 48, 16\]"),
    ((X[:, :15], W13, W2, WEIGHTS, IDS), r"x has shape 5x15 but w2 is 3x16x24\n  expected \[tokens, 16\]"),
    ((X[None], W13, W2, WEIGHTS, IDS), r"x has shape 1x5x16 .*\n  .*x.flatten\(0, -2\)"),
    ((X, W13, W2, WEIGHTS, IDS[:4]), r"topk_ids has shape 4x2 but x has 5 rows"),
    ((X, W13, W2, WEIGHTS[:, :1], IDS), "topk_weights has shape 5x1 but topk_ids 5x2"),
    ((X, W13, W2, WEIGHTS, IDS.float()), "topk_ids is float32, expected int64 or int32"),
    ((X, W13, W2, WEIGHTS.half(), IDS), "topk_weights is float16, expected float32\n"),
    ((X.half(), W13, W2, WEIGHTS, IDS), "x is float16 but w13 is float32"),
    ((X, W13, W2, WEIGHTS, IDS, "relu"), "activation must be one of silu, gelu, gelu_tanh, got 'relu'"),
    ((X, W13, W2, WEIGHTS.repeat(1, 2), IDS.repeat(1, 2)), "top_k=4 of 3 experts"),
]


@pytest.mark.parametrize(("given", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_call_is_refused(given: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"fused_moe: {message}"):
        registry.call("fused_moe", *given)
