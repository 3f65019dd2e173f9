"""Products with 2:4 sparse weights: mutants that some inputs refuse, what a call may give, gradients, clear errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch

import registry
from registry import InvalidArgumentError
from registry.contract import Op, as_tuple
from registry.contracts import GEMM_SPARSE24, GEMM_SPARSE24_BACKWARD
from registry.correctness import numerics
from registry.errors import ArgumentTypeError
from registry.problem import Problem
from registry.sparse import dense

pytestmark = pytest.mark.usefixtures("without_cpp_kernels")

Tensor = torch.Tensor
OPS = {op.name: op for op in (GEMM_SPARSE24, GEMM_SPARSE24_BACKWARD)}
SHAPES = ((4, 24, 1024), (33, 41, 76), (1, 64, 260))


@cache
def problems() -> list[Problem]:
    return [
        op.problem_of({"m": m, "n": n, "k": k, "dtype": dtype, **({"bias": True} if "bias" in op.choices else {})})
        for op in OPS.values()
        for m, n, k in SHAPES
        for dtype in ("float32", "bfloat16")
    ]


@cache
def case(key: str, kind: str) -> tuple[tuple[Any, ...], tuple[Tensor, ...], tuple[float, ...]]:
    problem = next(one for one in problems() if one.key == key)
    op = OPS[problem.op]
    values = op.draw(problem, kind, torch.Generator().manual_seed(7))
    reference = numerics.reference64(op, values)
    return values, reference, numerics.own_error(op, problem, values, reference)


def verdicts(op: Op, problem: Problem, compute: Callable[..., Any]) -> Iterator[numerics.Comparison]:
    for kind in op.kinds:
        values, reference, own = case(problem.key, kind)
        yield numerics.compare(op, problem, compute(op, *values), reference, own, values)


def changed(**change: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    """The reference on arguments of which some are changed."""

    def compute(op: Op, *values: Any) -> Any:
        named = dict(zip(op.parsed.names, values, strict=True))
        new = {name: make(named) for name, make in change.items() if name in named}
        return op.reference(*{**named, **new}.values())

    return compute


def without(count: int) -> Callable[[dict[str, Any]], Tensor]:
    """What is summed over, without its last ``count``."""

    def make(named: dict[str, Any]) -> Tensor:
        first: Tensor = named["x" if "x" in named else "grad_y"].clone()
        first[..., -count:] = 0
        return first

    return make


def pairs_swapped(named: dict[str, Any]) -> Any:
    """The value of the higher place at the lower one."""
    return named["values"].unflatten(1, (-1, 2)).flip(-1).flatten(1)


def places_reversed(named: dict[str, Any]) -> Any:
    """3 less each place: the two bits of a place taken from the other end."""
    return ~named["meta"]


def neighbours_places(named: dict[str, Any]) -> Any:
    """Each four takes the places of the one before it in the word."""
    words = named["meta"].long() & 0xFFFFFFFF
    return ((words << 4) | (words >> 28)).to(torch.int32)


def tf32(named: dict[str, Any]) -> Any:
    return (named["values"].view(torch.int32) & ~0x1FFF).view(torch.float32)


MUTANTS: dict[str, Callable[..., Any]] = {
    "zeros": lambda op, *values: tuple(map(torch.zeros_like, as_tuple(op.reference(*values)))),
    "last element of the sum left out": changed(x=without(1), grad_y=without(1)),
    "last four of the sum left out": changed(x=without(4), grad_y=without(4)),
    "values swapped within a four": changed(values=pairs_swapped),
    "places counted from the other end": changed(meta=places_reversed),
    "places of the four before": changed(meta=neighbours_places),
    "values of the next row": changed(values=lambda named: named["values"].roll(1, 0)),
    "places of the next row": changed(meta=lambda named: named["meta"].roll(1, 0)),
    "last word without places": changed(
        meta=lambda named: torch.cat([named["meta"][:, :-1], 0 * named["meta"][:, -1:] + 0x44444444], 1)
    ),
    "without the bias": changed(bias=lambda _: None, need_bias=lambda _: True),
    "tf32": changed(values=tf32),
}
ONLY: dict[str, Callable[[Problem], bool]] = {
    "without the bias": lambda problem: problem.op == "gemm_sparse24",
    "tf32": lambda problem: problem.dtype == "float32",
}


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("name", OPS)
@pytest.mark.few(11)
def test_a_mutant_is_refused_by_some_kind(name: str, mutant: str) -> None:
    for problem in problems():
        if problem.op == name and (mutant not in ONLY or ONLY[mutant](problem)):
            found = list(verdicts(OPS[name], problem, MUTANTS[mutant]))
            assert any(not verdict.ok for verdict in found), problem


def pruned_skipped(op: Op, *values: Any) -> Any:
    """In fp32, only what is kept, two elements of each four at a time: as a kernel without tensor cores does."""
    if op is GEMM_SPARSE24_BACKWARD:
        return op.reference(*values)
    x, kept, meta, k, bias = values
    places = (dense(torch.ones_like(kept), meta) != 0).nonzero()[:, 1].view(kept.shape)
    total = torch.zeros(x.shape[0], kept.shape[0])
    for at in range(0, k // 2, 2):
        total += (x.float()[:, places[:, at : at + 2]] * kept[:, at : at + 2].float()).sum(-1)
    return (total if bias is None else total + bias.float()).to(x.dtype)


@pytest.mark.parametrize("problem", problems(), ids=str)
@pytest.mark.few(4)
def test_a_right_computation_is_accepted_on_every_kind(problem: Problem) -> None:
    found = verdicts(OPS[problem.op], problem, pruned_skipped)
    assert [verdict.message for verdict in found if not verdict.ok] == []


def test_the_floor_reads_nine_sixteenths_of_the_weight() -> None:
    floor = GEMM_SPARSE24.floor(
        GEMM_SPARSE24.problem_of({"m": 1, "n": 64, "k": 128, "bias": False, "dtype": "bfloat16"})
    )
    assert floor.bytes == 64 * 128 * 2 * 9 // 16 + 2 * (64 + 128)
    assert floor.flop == 2 * 64 * 128 // 2


# --- calls ---


def sparse(n: int = 24, k: int = 44, dtype: torch.dtype = torch.float32) -> registry.Sparse24Weight:
    return registry.sparsify24(torch.randn(n, k, generator=torch.Generator().manual_seed(0)).to(dtype))


W = sparse()


@pytest.mark.parametrize("shape", [(44,), (3, 44), (2, 3, 44), (0, 44)])
@pytest.mark.parametrize("biased", [False, True])
def test_a_call_is_a_product_with_the_dense_weight(shape: tuple[int, ...], biased: bool) -> None:
    x, bias = torch.randn(shape), torch.randn(24) if biased else None
    wanted = torch.nn.functional.linear(x, W.dense(), bias)
    for given in ((x, W, bias), (x, *W.tensors, 44, bias)):
        torch.testing.assert_close(registry.call("gemm_sparse24", *given), wanted)
    torch.testing.assert_close(registry.call("gemm_sparse24", x=x, w=W, bias=bias), wanted)


def test_gradients_are_those_of_the_dense_product() -> None:
    x, bias, grad_y = torch.randn(2, 3, 44), torch.randn(24), torch.randn(2, 3, 24)
    for needs in ((True, True), (True, False), (False, True)):
        given = [one.clone().requires_grad_(need) for one, need in zip((x, bias), needs, strict=True)]
        wanted = [one for one, need in zip(given, needs, strict=True) if need]
        y = registry.call("gemm_sparse24", given[0], W, given[1])
        right = torch.nn.functional.linear(given[0], W.dense(), given[1])
        for one, other in zip(
            torch.autograd.grad(y, wanted, grad_y), torch.autograd.grad(right, wanted, grad_y), strict=True
        ):
            torch.testing.assert_close(one, other)


def test_it_is_compiled_whole() -> None:
    x = torch.randn(3, 44)
    compiled = torch.compile(lambda x, w: registry.call("gemm_sparse24", x, w) * 2, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, W), 2 * x @ W.dense().T)


X = torch.randn(2, 44)
WRONG: list[tuple[tuple[Any, ...], type[Exception], str]] = [
    (
        (X, torch.ones(24, 44)),
        ArgumentTypeError,
        r"w is a Tensor, expected a Sparse24Weight\n  w = registry.sparsify24",
    ),
    ((X[:, :40], W), InvalidArgumentError, r"x has shape 2x40 but w has K=44\n  expected x of shape \[..., 44\]"),
    (
        (X.half(), W),
        InvalidArgumentError,
        r"x is float16 but the values of w are float32\n  use w.to\(dtype=torch.float16",
    ),
    ((X.double(), W), InvalidArgumentError, "x is float64"),
    ((X, W, torch.ones(23)), InvalidArgumentError, r"bias has shape 23\n  expected \[24\]"),
    ((X, W, torch.ones(24).half()), InvalidArgumentError, "x is float32 but bias is float16"),
    ((X, *W.tensors, 40, None), InvalidArgumentError, r"k=40 but values is 24x22\n  expected k=44"),
    ((X, W.values, W.meta[:, :1], 44, None), InvalidArgumentError, r"meta is int32 of shape \(24, 1\)"),
]


@pytest.mark.parametrize(("given", "kind", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_a_wrong_call_is_refused(given: tuple[Any, ...], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"gemm_sparse24: {message}"):
        registry.call("gemm_sparse24", *given)


def test_a_gradient_of_another_shape_and_a_k_that_is_no_multiple_of_4_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="grad_y has shape 2x44 but w has N=24"):
        registry.call("gemm_sparse24_backward", X, *W.tensors, 44)
    with pytest.raises(InvalidArgumentError, match=r"k=6\n  expected a multiple of 4"):
        GEMM_SPARSE24.problem_of({"m": 1, "n": 4, "k": 6, "bias": False, "dtype": "float32"})
