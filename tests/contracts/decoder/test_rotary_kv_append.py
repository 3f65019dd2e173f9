"""rotary_kv_append: rotation and append against the two ops it stands for, what it refuses, and mutants."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

import registry
from registry.contracts import KV_CACHE_APPEND, ROTARY_EMBEDDING
from registry.contracts import ROTARY_KV_APPEND as OP
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.errors import InvalidArgumentError, OutOfRangeError

from ...tiers import one_of_each
from ..accepting import accepted

Tensor = torch.Tensor
NAMES = ("torch.native", "cpp.heads", "reference")
SIZES = ((3, 2, 4, 2, 9, 16, 16), (2, 5, 9, 3, 5, 40, 18))


def run(name: str, *values: Any) -> tuple[Tensor, Tensor]:
    if name == "reference":
        found: tuple[Tensor, Tensor] = OP.reference(*values)
        return found
    with registry.using(rotary_kv_append=name):
        return registry.call(OP.name, *values)  # type: ignore[no-any-return]


def drawn(sizes: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    """Queries, keys and values of one fused tensor, and caches with heads before tokens, as a StaticCache has them."""
    batch, q_len, heads, kv_heads, kv_len, width, part = sizes
    counts = [heads, kv_heads, kv_heads]
    fused = torch.randn(batch, q_len, sum(counts) * width).to(dtype).split([each * width for each in counts], -1)
    given = [x.unflatten(-1, (-1, width)) for x in fused]
    caches = [torch.randn(batch, kv_heads, kv_len, width).to(dtype).transpose(1, 2) for _ in range(2)]
    return *given, torch.randn(11, part).to(dtype), *caches


def by_two_ops(
    values: tuple[Any, ...], lengths: Tensor, positions: Tensor, is_neox: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated queries and both caches, by the references of rotary_embedding and kv_cache_append in float64."""
    query, key, value, table, *caches = (x.double() for x in values)
    query, key = query.contiguous(), key.contiguous()
    ROTARY_EMBEDDING.reference(positions, query, key, query.shape[-1], table, is_neox)
    batch, q_len = positions.shape
    room = caches[0].shape[1]
    slots = torch.arange(batch)[:, None] * room + lengths.long()[:, None] + torch.arange(q_len)
    KV_CACHE_APPEND.reference(key.flatten(0, 1), value.flatten(0, 1), *caches, slots.flatten())
    return query, caches[0], caches[1]


@pytest.mark.parametrize(
    ("name", "is_neox", "dtype"),
    one_of_each(
        itertools.product(NAMES, (True, False), (torch.float32, torch.bfloat16, torch.float16)),
        lambda name, is_neox, dtype: (name, is_neox),
    ),
)
@pytest.mark.few(3)
def test_it_is_the_rotation_and_the_append(name: str, is_neox: bool, dtype: torch.dtype) -> None:
    for (place, sizes), (other, kind) in itertools.product(enumerate(SIZES), enumerate((torch.int32, torch.int64))):
        # C++ is compiled for each size and form: the two styles together have all
        if name.startswith("cpp") and (place + other + is_neox) % 2:
            continue
        values = drawn(sizes, dtype)
        lengths = torch.randint(sizes[4] - sizes[1] + 1, (sizes[0],)).to(kind)
        positions = torch.randint(11, sizes[:2]).to(kind)
        right = by_two_ops(tuple(x.clone() for x in values), lengths, positions, is_neox)
        kept = [x.clone() for x in values[:4]]
        if kind == torch.int32:
            rotated, kv_lens = run(name, *values, lengths, positions, is_neox)
        else:
            of_tokens = (*values[:3], values[3][positions], *values[4:])
            rotated, kv_lens = run(name, *of_tokens, lengths, None, is_neox)
        limit = 8 * torch.finfo(dtype).eps
        for found, expected in zip((rotated, *values[-2:]), right, strict=True):
            torch.testing.assert_close(found.double(), expected, rtol=limit, atol=8 * limit)
        assert torch.equal(kv_lens, (lengths + sizes[1]).to(torch.int32))
        assert rotated.is_contiguous()
        assert all(map(torch.equal, values[:4], kept)), "arguments that are not caches are left alone"


@pytest.mark.parametrize("name", NAMES)
def test_sequences_may_share_their_positions_and_their_length(name: str) -> None:
    values = drawn(SIZES[0], torch.float32)
    positions, lengths = torch.tensor([[3, 4]]).expand(3, 2), torch.tensor(5).expand(3)
    table = values[3][3:5].expand(3, 2, 16)
    right = by_two_ops(tuple(x.clone() for x in values), lengths, positions, True)
    again = [x.clone() for x in values[-2:]]
    first, _ = run(name, *values[:3], table, *again, lengths, None, True)
    rotated, kv_lens = run(name, *values, lengths, positions, True)
    for one, other in zip((first, *again), (rotated, *values[-2:]), strict=True):
        assert torch.equal(one, other)
    torch.testing.assert_close(rotated.double(), right[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(values[-2].double(), right[1], rtol=1e-5, atol=1e-5)
    assert torch.equal(values[-1].double(), right[2])
    assert kv_lens.tolist() == [7, 7, 7]


def test_tokens_that_have_no_room_are_not_written() -> None:
    for kind, length in itertools.product((torch.int32, torch.int64), (8, 9, 2**31 - 3, -1)):
        values, behind = drawn(SIZES[0], torch.float32), torch.randn(2, 4, 9, 2, 16)
        rooms = [x.clone() for x in behind]
        caches = [x[1:3] for x in rooms]
        lengths = torch.tensor([length, 3], dtype=kind)
        given = [x[:2] for x in values[:3]]
        rotated, kv_lens = run("cpp.heads", *given, values[3], *caches, lengths, torch.zeros(2, 2, dtype=kind))
        assert kv_lens.tolist() == [min(length + 2, 9), 5]
        assert torch.isfinite(rotated).all()
        for own, before, new in zip(rooms, behind, given[1:], strict=True):
            written = {(sequence, *slot) for sequence, *slot in (own != before).nonzero()[:, :2].tolist()}
            assert written == {(1, at) for at in (length, length + 1) if 0 <= at < 9} | {(2, 3), (2, 4)}
            assert new.isfinite().all()


def test_there_may_be_no_sequences_and_no_tokens() -> None:
    values = drawn((2, 1, 4, 2, 9, 16, 16), torch.float32)
    lengths, positions = torch.tensor([3, 4]), torch.zeros(2, 1, dtype=torch.int64)
    before = values[-2].clone()
    nothing = [x[:, :0] for x in values[:3]]
    rotated, kv_lens = registry.call(OP.name, *nothing, *values[3:], lengths, positions[:, :0])
    assert rotated.shape == (2, 0, 4, 16)
    assert kv_lens.tolist() == [3, 4]
    assert torch.equal(values[-2], before)
    nobody = [x[:0] for x in values[:3]]
    table = torch.empty(0, 1, 16)
    rotated, kv_lens = registry.call(OP.name, *nobody, table, values[4][:0], values[5][:0], lengths[:0])
    assert (rotated.shape, kv_lens.shape) == ((0, 1, 4, 16), (0,))


def _of(change: Callable[..., Any]) -> Callable[..., Any]:
    """The reference with arguments by ``change(named)``, which returns those that differ."""

    def compute(*values: Any) -> Any:
        named = dict(zip(OP.parsed.names, values, strict=True))
        return OP.reference(*{**named, **change(named)}.values())

    return compute


def _results(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Callable[..., Any]:
    return lambda *values: change(*OP.reference(*values))


def _touched(cache: str) -> Callable[..., Any]:
    """The reference, and one more cell of a cache changed by a rounding."""

    def compute(*values: Any) -> Any:
        named = dict(zip(OP.parsed.names, values, strict=True))
        found = OP.reference(*values)
        first = named["cache_seqlens"].long()
        place = torch.where(first > 0, first - 1, first + named["query"].shape[1]).clamp_max(named[cache].shape[1] - 1)
        row = torch.arange(len(first))
        named[cache][row, place] *= 1 + 2 * torch.finfo(named[cache].dtype).eps
        return found

    return compute


BACK = torch.tensor([1.0] * 4 + [-1.0] * 4)
MUTANTS: Mapping[str, Callable[..., Any]] = {
    "nothing is written": lambda *values: OP.reference(*[x.clone() if isinstance(x, Tensor) else x for x in values]),
    "keys are not written": _of(lambda n: {"k_cache": n["k_cache"].clone()}),
    "values are not written": _of(lambda n: {"v_cache": n["v_cache"].clone()}),
    "keys for values": _of(lambda n: {"value": n["key"]}),
    "one place further": _of(lambda n: {"cache_seqlens": (n["cache_seqlens"] + 1) % 5}),
    "the place of another sequence": _of(lambda n: {"cache_seqlens": n["cache_seqlens"].roll(1)}),
    "the position of another token": _of(lambda n: {"positions": n["positions"].roll(1, 0)}),
    "the other style": _of(lambda n: {"is_neox": not n["is_neox"]}),
    "backwards": _of(lambda n: {"cos_sin_cache": n["cos_sin_cache"] * BACK.to(n["cos_sin_cache"].dtype)}),
    "heads of queries exchanged": _results(lambda rotated, lens: (rotated.roll(1, 2), lens)),
    "queries wrong by a tenth": _results(lambda rotated, lens: (rotated * 1.1, lens)),
    "lengths before the tokens": _results(lambda rotated, lens: (rotated, lens - 2)),
    "another key changed": _touched("k_cache"),
    "another value changed": _touched("v_cache"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("style", "dtype"),
    one_of_each(itertools.product(("neox", "gptj"), ("float32", "float16", "bfloat16")), lambda style, dtype: style),
)
def test_its_tolerances_accept_what_is_right_and_refuse_mutants(style: str, dtype: str) -> None:
    sizes = {"batch": 3, "heads": 4, "kv_heads": 2, "q_len": 2, "kv_len": 7, "head_dim": 12, "rotary_dim": 8}
    dims = {**sizes, "positions": True, "style": style, "dtype": dtype}
    assert accepted(OP, dims, OP.reference)
    for name, mutant in MUTANTS.items():
        assert not accepted(OP, dims, mutant), name


P, Q, K, T = torch.zeros(3, 2, dtype=torch.int64), torch.ones(3, 2, 4, 8), torch.ones(3, 2, 2, 8), torch.ones(5, 8)
C, L = torch.ones(3, 9, 2, 8), torch.zeros(3, dtype=torch.int32)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((Q, K, K, T, C, C.clone(), L, P.float()), "positions is float32, expected int64 or int32"),
        ((Q, K, K, T, C, C.clone(), L, P[:2]), "positions has shape 2x2"),
        ((Q, K, K, T, C, C.clone(), L[None], P), "cache_seqlens has shape 1x3"),
        ((Q[0], K, K, T, C, C.clone(), L, P), "query has shape 2x4x8"),
        ((Q, K[0], K, T, C, C.clone(), L, P), "key has shape 2x2x8"),
        ((Q, K, K[:, :1], T, C, C.clone(), L, P), "value has shape 3x1x2x8"),
        ((Q, K, K, T, C[:2], C.clone(), L, P), "k_cache has shape 2x9x2x8"),
        ((Q, K, K, T, C, C[:, :5].clone(), L, P), "v_cache has shape 3x5x2x8"),
        ((Q, K, K, T, C[:, :1], C[:, :1].clone(), L, P), "k_cache has room for 1 tokens of a sequence, 2 are new"),
        ((Q, K.half(), K, T, C, C.clone(), L, P), "query is float32 but key is float16"),
        ((Q, K, K, T, C.half(), C.clone(), L, P), "query is float32 but k_cache is float16"),
        ((Q, K, K, T[:, :7], C, C.clone(), L, P), "cos_sin_cache has shape 5x7 but positions are given"),
        ((Q, K, K, T, C, C.clone(), L), "cos_sin_cache has shape 5x8 but query has shape 3x2x4x8, and no positions"),
        ((Q, K, K, T.half(), C, C.clone(), L, P), "query is float32 but cos_sin_cache is float16"),
        ((Q, K, K, T, C, C, L, P), "k_cache and v_cache share memory"),
        ((Q, K, K, T, torch.ones(1, 9, 2, 8).expand(3, 9, 2, 8), C, L, P), "k_cache is expanded"),
    ],
)
def test_what_it_refuses(args: tuple[object, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        registry.call(OP.name, *args)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"rotary_dim": 10}, "rotary_dim=10 but head_dim=8"), ({"q_len": 9}, "q_len=9 but kv_len=5")],
)
def test_problems_that_no_call_has(changes: dict[str, int], message: str) -> None:
    dims = {"batch": 1, "heads": 1, "kv_heads": 1, "q_len": 1, "kv_len": 5, "head_dim": 8, "rotary_dim": 8}
    dims["positions"] = False
    with pytest.raises(InvalidArgumentError, match=message):
        OP.problem_of({**dims, "style": "neox", "dtype": "float32", **changes})


def test_data_outside_of_table_and_cache_are_found_where_they_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_CHECK", "1")
    # data are checked before any kernel runs: none in C++ is compiled for it
    monkeypatch.setenv("CXX", "no-such-compiler")
    call = Dispatcher(Catalog()).op(OP.name)
    call(Q, K, K, T, C.clone(), C.clone(), L + 7, P + 4)
    with pytest.raises(OutOfRangeError, match=r"positions\[0, 0\] is 5, expected 0 to 4, a row of cos_sin_cache"):
        call(Q, K, K, T, C.clone(), C.clone(), L, P + 5)
    with pytest.raises(OutOfRangeError, match=r"cache_seqlens\[0\] is 8, expected 0 to 7, so that 2 new tokens"):
        call(Q, K, K, T, C.clone(), C.clone(), L + 8, P)
