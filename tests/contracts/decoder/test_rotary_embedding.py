"""rotary_embedding: every style and shape, what it refuses, and mutants that its tolerance refuses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

import registry
from registry.contracts import ROTARY_EMBEDDING as OP
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.errors import InvalidArgumentError, OutOfRangeError

from ...tiers import one_of_each
from ..accepting import accepted
from .rotations import close, rotated, table

Tensor = torch.Tensor
NAMES = ("torch.native", "cpp.heads", "reference")


def run(name: str, *values: Any) -> None:
    if name == "reference":
        assert OP.reference(*values) is None
        return
    with registry.using(rotary_embedding=name):
        assert registry.call(OP.name, *values) is None


@pytest.mark.parametrize(
    ("name", "is_neox", "dtype"),
    one_of_each(
        itertools.product(NAMES, (True, False), (torch.float32, torch.bfloat16, torch.float16)),
        lambda name, is_neox, dtype: (name, is_neox),
    ),
)
@pytest.mark.few(3)
def test_heads_are_rotated_in_place(name: str, is_neox: bool, dtype: torch.dtype) -> None:
    both = ((True, torch.int64, dtype), (False, torch.int32, torch.float32))
    for place, (leading, heads, kv_heads, width, part) in enumerate(
        (((5,), 4, 2, 64, 64), ((2, 3), 3, 1, 20, 10), ((1,), 9, 9, 96, 42), ((70,), 1, 1, 8, 2))
    ):
        # C++ is compiled for each width and form: the two styles together have all
        for flat, kind, wide in both[(place + is_neox) % 2 :][:1] if name.startswith("cpp") else both:
            positions = torch.randint(50, leading).to(kind)
            query, key = torch.randn(*leading, heads, width).to(dtype), torch.randn(*leading, kv_heads, width).to(dtype)
            cache = table(50, part, wide)
            right = [rotated(positions, x, cache, is_neox) for x in (query, key)]
            given = (query.flatten(-2), key.flatten(-2)) if flat else (query, key)
            run(name, positions, *given, width, cache, is_neox)
            close(query, right[0])
            close(key, right[1])
            assert torch.equal(query[..., part:].double(), right[0][..., part:])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("flat", [True, False])
def test_parts_of_a_fused_tensor_are_rotated_where_they_are(name: str, flat: bool) -> None:
    tokens, heads, kv_heads, width = 7, 4, 2, 32
    fused = torch.randn(tokens, (heads + 2 * kv_heads) * width)
    before, positions, cache = fused.clone(), torch.randint(9, (tokens,)), table(9, width, torch.float32)
    parts = [heads * width, kv_heads * width, kv_heads * width]
    query, key, _ = fused.split(parts, -1)
    right = [rotated(positions, x.unflatten(-1, (-1, width)), cache, True).flatten(-2) for x in (query, key)]
    given = (query, key) if flat else (query.unflatten(-1, (-1, width)), key.unflatten(-1, (-1, width)))
    run(name, positions, *given, width, cache, True)
    close(fused[:, : sum(parts[:2])], torch.cat(right, -1))
    assert torch.equal(fused[:, sum(parts[:2]) :], before[:, sum(parts[:2]) :]), "values are left alone"


@pytest.mark.parametrize("name", NAMES)
def test_heads_may_be_apart_and_tokens_in_any_order(name: str) -> None:
    positions, cache = torch.tensor([3, 0, 8]), table(9, 16, torch.float32)
    query, key = torch.randn(4, 3, 16).transpose(0, 1), torch.randn(3, 2, 40)[..., 5:21]
    right = [rotated(positions, x, cache, False) for x in (query, key)]
    run(name, positions, query, key, 16, cache, False)
    close(query, right[0])
    close(key, right[1])


@pytest.mark.parametrize("name", ["torch.native", "cpp.heads"])
def test_layouts_that_no_kernel_takes_are_left_to_torch(name: str) -> None:
    positions, cache = torch.tensor([3, 0]), table(9, 8, torch.float32)
    query, key = torch.randn(2, 8, 3).transpose(1, 2), torch.randn(2, 1, 8)
    right = rotated(positions, query, cache, True)
    if name == "torch.native":
        registry.call(OP.name, positions, query, key, 8, cache, True)
        close(query, right)
    else:
        with pytest.raises(
            registry.UnsupportedError, match="query are not evenly spaced, or the elements of its heads"
        ):
            run(name, positions, query, key, 8, cache, True)


def test_tokens_and_the_heads_of_keys_may_be_none() -> None:
    cache = table(9, 8, torch.float32)
    assert (
        registry.call(OP.name, torch.empty(0, dtype=torch.int64), torch.empty(0, 16), torch.empty(0, 8), 8, cache, True)
        is None
    )
    query, positions = torch.randn(2, 16), torch.tensor([1, 2])
    right = rotated(positions, query.view(2, 2, 8), cache, True).flatten(1)
    registry.call(OP.name, positions, query, query.new_empty(2, 0), 8, cache, True)
    close(query, right)


def _other_style(positions: Tensor, query: Tensor, key: Tensor, size: int, cache: Tensor, is_neox: bool) -> None:
    OP.reference(positions, query, key, size, cache, not is_neox)


def _changed(**changes: Callable[[Tensor], Tensor]) -> Callable[..., None]:
    """The reference with some arguments changed; those that are written to are changed in place."""

    def compute(*values: Any) -> None:
        named = dict(zip(OP.parsed.names, values, strict=True))
        OP.reference(*{**named, **{name: change(named[name]) for name, change in changes.items()}}.values())

    return compute


def _halved(positions: Tensor, query: Tensor, key: Tensor, size: int, cache: Tensor, is_neox: bool) -> None:
    """In bfloat16, whatever the dtype is."""
    low = [query.bfloat16(), key.bfloat16()]
    OP.reference(positions, *low, size, cache.bfloat16(), is_neox)
    for x, result in zip((query, key), low, strict=True):
        part = x.unflatten(-1, (-1, size))[..., : cache.shape[1]]
        part.copy_(result.unflatten(-1, (-1, size))[..., : cache.shape[1]])


def _sines_backwards(cache: Tensor) -> Tensor:
    half = cache.shape[1] // 2
    return torch.cat((cache[:, :half], -cache[:, half:]), -1)


def _exchanged(cache: Tensor) -> Tensor:
    return cache.roll(cache.shape[1] // 2, 1)


def _without_last_head(positions: Tensor, query: Tensor, key: Tensor, *rest: Any) -> None:
    OP.reference(positions, query[:, : -rest[0]], key, *rest)


def _without_last_token(positions: Tensor, query: Tensor, key: Tensor, *rest: Any) -> None:
    OP.reference(positions[:-1], query[:-1], key[:-1], *rest)


def _without_last_pair(positions: Tensor, query: Tensor, key: Tensor, size: int, cache: Tensor, is_neox: bool) -> None:
    last = query.view(-1, size)[:, cache.shape[1] - 1].clone()
    OP.reference(positions, query, key, size, cache, is_neox)
    query.view(-1, size)[:, cache.shape[1] - 1] = last


def _rest_cleared(positions: Tensor, query: Tensor, key: Tensor, size: int, cache: Tensor, is_neox: bool) -> None:
    OP.reference(positions, query, key, size, cache, is_neox)
    query.view(-1, size)[:, cache.shape[1] :] = 0


def _one_by_one(positions: Tensor, query: Tensor, key: Tensor, size: int, cache: Tensor, is_neox: bool) -> None:
    """The second of a pair from the first's new value."""
    cos, sin = cache[positions].unsqueeze(-2).chunk(2, -1)
    for x in (query, key):
        part = x.unflatten(-1, (-1, size))[..., : cache.shape[1]]
        a, b = part.chunk(2, -1) if is_neox else (part[..., ::2], part[..., 1::2])
        a.copy_(a * cos - b * sin)
        b.copy_(b * cos + a * sin)


MUTANTS: Mapping[str, Callable[..., None]] = {
    "nothing is rotated": lambda *_: None,
    "only query is": lambda p, q, k, *rest: OP.reference(p, q, k.clone(), *rest),
    "only key is": lambda p, q, k, *rest: OP.reference(p, q.clone(), k, *rest),
    "the other style": _other_style,
    "the position after it": _changed(positions=lambda p: (p + 1) % 64),
    "the position of the token before": _changed(positions=lambda p: p.roll(1)),
    "one position for all": _changed(positions=lambda p: p[:1].expand_as(p)),
    "the other direction": _changed(cos_sin_cache=_sines_backwards),
    "cosines for sines": _changed(cos_sin_cache=_exchanged),
    "angles of the pair before": _changed(cos_sin_cache=lambda c: c.roll(1, 1)),
    "without the last head": _without_last_head,
    "without the last token": _without_last_token,
    "without the last pair": _without_last_pair,
    "the rest of a head is cleared": _rest_cleared,
    "one after the other": _one_by_one,
    "wrong by a hundredth": lambda p, q, *rest: (OP.reference(p, q, *rest), q.mul_(1.01)),
}


def _as_vllm(positions: Tensor, query: Tensor, key: Tensor, size: int, cache: Tensor, is_neox: bool) -> None:
    """Both products and their sum rounded to the dtype, as vLLM's kernel does."""
    cos, sin = cache[positions].unsqueeze(-2).chunk(2, -1)
    for x in (query, key):
        part = x.unflatten(-1, (-1, size))[..., : cache.shape[1]]
        a, b = part.chunk(2, -1) if is_neox else (part[..., ::2], part[..., 1::2])
        first, second = a * cos - b * sin, b * cos + a * sin
        a.copy_(first)
        b.copy_(second)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("style", ["neox", "gptj"])
def test_the_tolerance_accepts_what_is_right_and_refuses_mutants(style: str, dtype: str) -> None:
    dims = {"tokens": 9, "heads": 3, "kv_heads": 2, "head_dim": 24, "rotary_dim": 16, "style": style, "dtype": dtype}
    assert accepted(OP, dims, OP.reference)
    assert accepted(OP, dims, _as_vllm)
    for name, mutant in MUTANTS.items():
        assert not accepted(OP, dims, mutant), name
    if dtype != "bfloat16":
        assert not accepted(OP, dims, _halved)


P, Q, K, C = torch.zeros(3, dtype=torch.int64), torch.ones(3, 16), torch.ones(3, 8), torch.ones(5, 8)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((P.float(), Q, K, 8, C, True), "positions is float32, expected int64 or int32"),
        ((P, Q[:2], K, 8, C, True), r"query has shape 2x16 but positions have 3 .*\n.*\[3, heads \* 8\]"),
        ((P, Q, K, 7, C, True), "query has shape 3x16 but positions have 3 and head_size is 7"),
        ((P, Q, K.view(3, 2, 4), 8, C, True), "key has shape 3x2x4"),
        ((P, Q, K, 0, C, True), "head_size must be a positive integer, got 0"),
        ((P, Q[:, :0], K, 8, C, True), "query has shape 3x0, without a head"),
        ((P, Q, K.half(), 8, C, True), "query is float32 but key is float16"),
        ((P, Q, K, 8, C.half(), True), "query is float32 but cos_sin_cache is float16"),
        ((P, Q.half(), K.half(), 8, C.bfloat16(), True), "query is float16 but cos_sin_cache is bfloat16"),
        ((P, Q, K, 8, C[:, :7], True), "cos_sin_cache has shape 5x7 but head_size is 8"),
        ((P, Q, K, 8, torch.ones(5, 10), True), "cos_sin_cache has shape 5x10 but head_size is 8"),
        ((P, Q, K, 8, C[0], True), "cos_sin_cache has shape 8"),
        ((P, torch.ones(16).expand(3, 16), K, 8, C, True), "query is expanded"),
        ((P, Q.int(), K.int(), 8, C, True), "query is int32"),
        ((P, Q, Q[:, 4:12], 8, C, True), "query and key share memory, and query is written to"),
        ((P, Q, None, 8, C, True), "key must be a Tensor, got None"),
    ],
)  # fmt: skip
def test_what_it_refuses(args: tuple[object, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        registry.call(OP.name, *args)


def test_dimensions_that_no_call_has() -> None:
    dims = {
        "tokens": 9,
        "heads": 3,
        "kv_heads": 2,
        "head_dim": 24,
        "rotary_dim": 16,
        "style": "neox",
        "dtype": "float32",
    }
    for wrong, message in (
        ({"rotary_dim": 15}, "rotary_dim=15 but head_dim=24"),
        ({"rotary_dim": 26}, "rotary_dim=26 but head_dim=24"),
        ({"kv_heads": -1}, "kv_heads must be an integer of at least 0"),
        ({"heads": 0}, "heads must be a positive integer"),
        ({"style": "llama"}, "style must be one of neox, gptj"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            OP.problem_of({**dims, **wrong})


def test_a_gradient_is_refused() -> None:
    with pytest.raises(registry.UnsupportedError, match="no backward"):
        registry.call(OP.name, P, Q.clone().requires_grad_(), K.clone(), 8, C, True)


def test_a_position_outside_of_the_table_is_found_where_data_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_CHECK", "1")
    # data are checked before any kernel runs: none in C++ is compiled for it
    monkeypatch.setenv("CXX", "no-such-compiler")
    call = Dispatcher(Catalog()).op(OP.name)
    call(P + 4, Q.clone(), K.clone(), 8, C, True)
    for wrong, place in ((torch.tensor([0, 5, 0]), r"\[1\] is 5"), (torch.tensor([0, 0, -1]), r"\[2\] is -1")):
        with pytest.raises(OutOfRangeError, match=f"rotary_embedding: positions{place}, expected 0 to 4, a row of cos"):
            call(wrong, Q.clone(), K.clone(), 8, C, True)
    with pytest.raises(OutOfRangeError, match="rotary_embedding: positions is 5, expected 0 to 4"):
        call(torch.tensor(5), Q[0].clone(), K[0].clone(), 8, C, True)


def test_compiled_code_sees_the_rotated_tensors() -> None:
    def rotate(query: Tensor, key: Tensor) -> Tensor:
        registry.call(OP.name, P + 2, query, key, 8, table(5, 8, torch.float32), True)
        return query + 1

    query, key = torch.randn(3, 16), torch.randn(3, 8)
    right = rotate(query.clone(), key.clone())
    compiled = torch.compile(rotate, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(query, key), right)
    torch.testing.assert_close(query, right - 1)
