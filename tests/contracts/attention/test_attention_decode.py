"""attention_decode: pages, lengths, windows and caps, what it refuses, and mutants that its tolerances refuse."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

import registry
from registry.contracts import ATTENTION_DECODE as OP
from registry.contracts.attention.decode_lengths import LENGTHS, keys_read, lengths_of, pairs_seen
from registry.device import Device
from registry.discovery.answers import refusals
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.errors import InvalidArgumentError, OutOfRangeError, UnsupportedError

from ...tiers import one_of_each
from ..accepting import accepted

Tensor = torch.Tensor
NAMES = ("torch.native", "cpp.groups", "reference")
FLOAT8 = torch.float8_e4m3fn


def run(name: str, *values: Any, **attributes: Any) -> tuple[Tensor, Tensor]:
    if name == "reference":
        found = OP.reference(*values, **attributes)
    else:
        with registry.using(attention_decode=name):
            found = registry.call(OP.name, *values, **attributes)
    assert isinstance(found, tuple)
    return found[0], found[1]


def one_by_one(
    q: Tensor, keys: Tensor, values: Tensor, lengths: list[int], softcap: float = 0.0, window: int = -1
) -> tuple[Tensor, Tensor]:
    """Each token and head by itself, from keys and values [batch, kv_len, kv_heads, head_dim], in float64."""
    batch, q_len, heads, width = q.shape
    out, lse = torch.zeros(q.shape, dtype=torch.float64), torch.full((batch, heads, q_len), -math.inf).double()
    for b, length in enumerate(lengths):
        for i in range(q_len):
            place = length - q_len + i
            first = 0 if window < 0 else max(0, place - window)
            for head in range(heads if place >= 0 else 0):
                own = slice(first, place + 1), head // (heads // keys.shape[2])
                logits = keys[b][own].double() @ q[b, i, head].double() / math.sqrt(width)
                logits = softcap * torch.tanh(logits / softcap) if softcap else logits
                out[b, i, head] = logits.softmax(-1) @ values[b][own].double()
                lse[b, head, i] = logits.exp().sum().log()
    return out, lse


def drawn(batch: int, q_len: int, heads: int, kv_heads: int, kv_len: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    shape = (batch, kv_len, kv_heads, width)
    return torch.randn(batch, q_len, heads, width), torch.randn(shape), torch.randn(shape)


SIZES = 3, 6, 2, 17, 12
"""Tokens, heads, heads of the cache, its length and a head's width: C++ of others is compiled anew."""


def same(found: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> None:
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "window"),
    [
        # C++ is compiled for each window
        pytest.param(name, window, marks=pytest.mark.thorough if name.startswith("cpp") and not window else ())
        for name in NAMES
        for window in (-1, 0, 5)
    ],
)
@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.few(6)
def test_each_token_sees_the_keys_up_to_its_own(name: str, window: int, softcap: float) -> None:
    q, keys, values = drawn(4, *SIZES)
    lengths = torch.tensor([17, 0, 2, 9], dtype=torch.int32)
    found = run(name, q, keys, values, lengths, softcap=softcap, window=window)
    same(found, one_by_one(q, keys, values, lengths.tolist(), softcap, window))
    assert torch.equal(found[0][1], torch.zeros_like(q[1]))
    assert found[1][1].eq(-math.inf).all()


def paged(tokens: Tensor, table: Tensor, page: int, pages: int) -> Tensor:
    """A cache [pages, page, ...], NaN where the table has no page."""
    cache = torch.full((pages, page, *tokens.shape[2:]), torch.nan)
    for b, row in enumerate(table.tolist()):
        for number, block in enumerate(row):
            if 0 <= block < pages:
                cache[block] = tokens[b, number * page : (number + 1) * page]
    return cache


@pytest.mark.parametrize("name", NAMES)
def test_keys_are_where_the_table_says(name: str) -> None:
    q, keys, values = drawn(3, 2, 4, 4, 24, 8)
    table = torch.tensor([[7, 0, 3], [2, -5, 10**6], [9, 4, 77]], dtype=torch.int32)
    lengths = torch.tensor([24, 5, 16], dtype=torch.int32)
    caches = [paged(tokens, table, 8, 11) for tokens in (keys, values)]
    same(run(name, q, *caches, lengths, table), one_by_one(q, keys, values, lengths.tolist()))


# C++ of another dtype of the cache is compiled anew
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if name.startswith("cpp") else ()) for name in NAMES]
)
def test_float8_caches_are_multiplied_by_their_scales(name: str) -> None:
    q, keys, values = drawn(2, 1, 4, 1, 19, 16)
    narrow = keys.to(FLOAT8), values.to(FLOAT8)
    lengths, scales = torch.tensor([19, 4], dtype=torch.int32), (torch.tensor([0.5]), torch.tensor([3.0]))
    found = run(name, q, *narrow, lengths, None, *scales)
    right = one_by_one(q, narrow[0].float() * 0.5, narrow[1].float() * 3.0, lengths.tolist())
    same(found, right)
    assert found[0].dtype == torch.float32


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if name.startswith("cpp") else ()) for name in NAMES]
)
def test_int8_caches_are_multiplied_by_their_scales(name: str) -> None:
    q, keys, values = drawn(3, 2, 4, 2, 24, 16)
    levels = [(x * 50).round().clamp(-128, 127).to(torch.int8) for x in (keys, values)]
    lengths, scales = torch.tensor([24, 5, 16], dtype=torch.int32), (torch.tensor([0.02]), torch.tensor([0.03]))
    wide = levels[0].float() * 0.02, levels[1].float() * 0.03
    for window, softcap in ((-1, 0.0), (3, 1.5)):
        right = one_by_one(q, *wide, lengths.tolist(), softcap, window)
        found = run(name, q, *levels, lengths, None, *scales, softcap=softcap, window=window)
        same(found, right)
        assert found[0].dtype == torch.float32
    table = torch.tensor([[7, 0, 3], [2, -5, 10**6], [9, 4, 77]], dtype=torch.int32)
    caches = [paged(x, table, 8, 11).nan_to_num(127.0).to(torch.int8) for x in levels]
    same(run(name, q, *caches, lengths, table, *scales), one_by_one(q, *wide, lengths.tolist()))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if name.startswith("cpp") else ()) for name in NAMES]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.few(3)
def test_each_level_of_int8_is_read_as_it_is(name: str, dtype: torch.dtype) -> None:
    # of a single key the output is the value, and its logit the level that a query of one element points to
    levels = torch.arange(-128, 128).to(torch.int8).view(1, 1, 1, 256)
    ones, lengths = (torch.tensor([0.25]), torch.tensor([1.0])), torch.tensor([1], dtype=torch.int32)
    for place in (0, 1, 127, 128, 255):
        q = torch.zeros(1, 1, 2, 256, dtype=dtype)
        q[..., place] = 1.0
        out, lse = run(name, q, levels, levels, lengths, None, *ones, scale=1.0)
        assert torch.equal(out, levels.expand(1, 1, 2, 256).to(dtype))
        torch.testing.assert_close(lse, torch.full((1, 2, 1), 0.25 * (place - 128)))


@pytest.mark.parametrize("name", ["torch.native", "reference"])
def test_attention_to_what_was_appended_in_int8_is_near_to_that_of_the_numbers(name: str) -> None:
    q, keys, values = drawn(2, 1, 4, 2, 32, 64)
    lengths, table = torch.tensor([32, 11], dtype=torch.int32), torch.tensor([[3, 0], [1, 2]], dtype=torch.int32)
    caches = [torch.zeros(4, 16, 2, 64, dtype=torch.int8) for _ in range(2)]
    scales = [x.abs().amax().reshape(1) / 127 for x in (keys, values)]
    slots = (table.long()[..., None] * 16 + torch.arange(16)).flatten()
    registry.call("kv_cache_append", keys.flatten(0, 1), values.flatten(0, 1), *caches, slots, *scales)
    out, lse = run(name, q, *caches, lengths, table, *scales)
    right = one_by_one(q, keys, values, lengths.tolist())
    # a level is rounded by half of a scale at most
    assert (out - right[0]).abs().max() < 2 * scales[1].item()
    assert (lse - right[1]).abs().max() < 2 * scales[0].item()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_behind_the_end_does_not_matter(name: str) -> None:
    q, keys, values = drawn(2, *SIZES)
    lengths = torch.tensor([7, 1], dtype=torch.int32)
    clean = run(name, q, keys, values, lengths)
    for b, length in enumerate(lengths.tolist()):
        keys[b, length:], values[b, length:] = torch.nan, torch.inf
    same(run(name, q, keys, values, lengths), (clean[0].double(), clean[1].double()))


@pytest.mark.parametrize("name", NAMES)
def test_parts_of_a_fused_tensor_and_caches_in_other_orders(name: str) -> None:
    fused = torch.randn(3, 3, 6 * 12 + 64)
    q = fused[..., 16 : 16 + 72].unflatten(-1, (6, 12))
    keys, values = (torch.randn(3, 2, 9, 12).transpose(1, 2) for _ in range(2))
    lengths = torch.tensor([9, 3, 5], dtype=torch.int32)
    found = run(name, q, keys, values, lengths)
    same(found, one_by_one(q, keys, values, lengths.tolist()))
    assert found[0].is_contiguous()


@pytest.mark.parametrize("name", NAMES)
def test_a_scale_of_the_caller_takes_the_place_of_the_default(name: str) -> None:
    q, keys, values = drawn(1, *SIZES)
    lengths = torch.tensor([5], dtype=torch.int32)
    same(
        run(name, q, keys, values, lengths, scale=0.75),
        one_by_one(q * 0.75 * math.sqrt(12), keys, values, [5]),
    )


def test_a_gradient_is_refused() -> None:
    q, keys, _ = drawn(1, 1, 2, 2, 5, 16)
    lengths = torch.tensor([5], dtype=torch.int32)
    for cache, scales in ((keys, (None, None)), (torch.zeros(keys.shape, dtype=torch.int8), (ONE, ONE))):
        with pytest.raises(UnsupportedError, match="attention_decode"):
            registry.call(OP.name, q.requires_grad_(), cache, cache, lengths, None, *scales)


@pytest.mark.parametrize("op", ["attention_decode", "kv_cache_append"])
def test_only_what_names_int8_runs_it(op: str) -> None:
    catalog = Catalog()
    dims = {**SMALL, "kv_dtype": "int8", "dtype": "bfloat16"}
    append = {"tokens": 3, "kv_heads": 2, "head_dim": 128, "block_size": 16, "kv_dtype": "int8", "dtype": "bfloat16"}
    problem = catalog.op(op).problem_of(append if op == "kv_cache_append" else {**dims, "head_dim": 128})
    told = f"it does not say that it takes kv_dtype=int8, which {op} got later"
    refused = {
        one.name
        for one in catalog.implementations(op)
        if told
        in refusals(one, problem, Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 2**37, 2**25, 227 * 1024, 65536))
    }
    named = {one.name for one in catalog.implementations(op) if "int8" in one.added.get("kv_dtype", ())}
    usual = {"triton.block"} if op == "kv_cache_append" else {"triton.whole", "triton.split_kv", "cuda.mma"}
    assert usual <= refused
    assert {name for name in named if "int8" in name} == {f"{name}_int8" for name in usual if "triton" in name}
    assert "torch.native" in named
    assert not refused & named


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("window", [-1, 0, 30])
def test_the_floor_counts_the_keys_that_are_seen(lengths: str, window: int) -> None:
    dims = {
        **SMALL,
        "batch": 5,
        "kv_len": 64,
        "q_len": 3,
        "page": 16,
        "span": window >= 0 and window + 1,
        "lengths": lengths,
    }
    problem = OP.problem_of({**dims, "dtype": "bfloat16"})
    told = lengths_of(problem)
    assert len(told) == 5
    assert max(told) == 64
    assert min(told) >= 1
    seen = torch.zeros(5, 3, 64, dtype=torch.bool)
    for b, length in enumerate(told):
        for i in range(3):
            place = length - 3 + i
            seen[b, i, max(0, place - window) if window >= 0 else 0 : max(0, place + 1)] = True
    assert pairs_seen(problem) == int(seen.sum())
    assert keys_read(problem) == int(seen.any(1).sum())
    row = 2 * problem.kv_heads * problem.head_dim * 2
    assert OP.floor(problem).bytes >= keys_read(problem) * row


def _of(change: Callable[..., Any]) -> Callable[..., Any]:
    """The reference with arguments by ``change(named)``, which returns those that differ."""

    def compute(*values: Any) -> Any:
        named = dict(zip(OP.parsed.names, values, strict=True))
        return OP.reference(**{**named, **change(named)})

    return compute


def _after(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Callable[..., Any]:
    return lambda *values: change(*OP.reference(*values))


def _lse_of_base_2(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    return out, lse / math.log(2)


def _all_as_the_last(*values: Any) -> Any:
    """Every token of a sequence sees what its last one sees."""
    q, *rest = values
    each = [OP.reference(q[:, i : i + 1], *rest) for i in range(q.shape[1])]
    return torch.cat([out for out, _ in each], 1), torch.cat([lse for _, lse in each], 2)


def halves(dtype: torch.dtype, logits: bool) -> Callable[..., Any]:
    """Weights, or with ``logits`` the logits, rounded to ``dtype``, from a cache without pages."""

    def compute(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, table: Any, *rest: Any) -> Any:
        k_scale, v_scale, _, softcap, window = rest
        group = q.shape[2] // k.shape[2]
        keys, values = (each.float().repeat_interleave(group, 2) for each in (k, v))
        scores = torch.einsum("bihd,bjhd->bhij", q.float(), keys) / math.sqrt(q.shape[3])
        scores = scores * (1.0 if k_scale is None else k_scale)
        scores = softcap * torch.tanh(scores / softcap) if softcap else scores
        scores = scores.to(dtype).float() if logits else scores
        place = lengths[:, None] - q.shape[1] + torch.arange(q.shape[1])
        behind = place[:, None, :, None] - torch.arange(k.shape[1])
        seen = (behind >= 0) & (behind <= window if window >= 0 else behind >= 0)
        scores = scores.masked_fill(~seen, -math.inf)
        lse = scores.logsumexp(-1)
        most = scores.amax(-1, keepdim=True).nan_to_num(neginf=0.0)
        weights = (scores - most).exp().masked_fill(~seen, 0.0)
        values = values.masked_fill(~seen.any(-2).transpose(1, 2)[..., None], 0.0)
        out = torch.einsum("bhij,bjhd->bihd", weights if logits else weights.to(dtype).float(), values)
        total = weights.sum(-1).transpose(1, 2)[..., None]
        out = torch.where(total == 0, 0.0, out / total) * (1.0 if v_scale is None else v_scale)
        return out.to(q.dtype), lse

    return compute


SMALL: Mapping[str, Any] = {
    "batch": 3, "heads": 4, "kv_heads": 2, "q_len": 2, "kv_len": 96, "head_dim": 24, "page": False, "span": False,
    "kv_dtype": "auto", "softcap": False, "lengths": "uniform",
}  # fmt: skip
MUTANTS: Mapping[str, Callable[..., Any]] = {
    "zeros": _after(lambda out, lse: (torch.zeros_like(out), lse)),
    "lse in base 2": _after(_lse_of_base_2),
    "the first sequence for all": _after(lambda out, lse: (out[:1].expand_as(out), lse)),
    "heads exchanged": _after(lambda out, lse: (out.roll(1, 2), lse)),
    "lse of another head": _after(lambda out, lse: (out, lse.roll(1, 1))),
    "lse of another token": _after(lambda out, lse: (out, lse.roll(1, 2))),
    "the last element left out": _after(lambda out, lse: (out * (torch.arange(24) < 23), lse)),
    "without the last key": _of(lambda named: {"kv_lens": named["kv_lens"] - 1}),
    "a key more": _of(lambda named: {"kv_lens": (named["kv_lens"] + 1).clamp_max(96)}),
    "the longest for all": _of(lambda named: {"kv_lens": named["kv_lens"] * 0 + 96}),
    "every token as the last": _all_as_the_last,
    "groups interleaved": _of(lambda named: {"q": named["q"].unflatten(2, (2, 2)).transpose(2, 3).flatten(2, 3)}),
    "keys for values": _of(lambda named: {"v_cache": named["k_cache"]}),
    "no scale": _of(lambda _: {"scale": 1.0}),
    "scale of the padded head": _of(lambda _: {"scale": 32**-0.5}),
    "a window of 95": _of(lambda _: {"window": 94}),
    "capped": _of(lambda _: {"softcap": 50.0}),
    "wrong by a hundredth": _of(lambda named: {"v_cache": (named["v_cache"].float() * 1.01).to(named["q"].dtype)}),
    "float8 keys": _of(lambda named: {"k_cache": named["k_cache"].to(FLOAT8).to(named["q"].dtype)}),
    "logits in bfloat16": halves(torch.bfloat16, True),
}


@pytest.mark.parametrize(("mutant", "dtype"), one_of_each(
    [(name, dtype) for name in MUTANTS for dtype in ("float32", "bfloat16", "float16")], lambda name, _: name
))  # fmt: skip
def test_mutants_are_refused(mutant: str, dtype: str) -> None:
    assert not accepted(OP, {**SMALL, "dtype": dtype}, MUTANTS[mutant])


OTHERS: Mapping[str, tuple[Mapping[str, Any], Callable[..., Any]]] = {
    "pages in order": (
        {"page": 16},
        _of(lambda named: {"block_table": torch.arange(18, dtype=torch.int32).view(3, 6)}),
    ),
    "the table of another": ({"page": 16}, _of(lambda named: {"block_table": named["block_table"].roll(1, 0)})),
    "without scales": (
        {"kv_dtype": "float8_e4m3fn"},
        _of(lambda _: {"k_scale": torch.ones(1), "v_scale": torch.ones(1)}),
    ),
    "one scale for both": ({"kv_dtype": "float8_e4m3fn"}, _of(lambda named: {"v_scale": named["k_scale"]})),
    "without scales of int8": (
        {"kv_dtype": "int8"},
        _of(lambda _: {"k_scale": torch.ones(1), "v_scale": torch.ones(1)}),
    ),
    "one scale for both of int8": ({"kv_dtype": "int8"}, _of(lambda named: {"v_scale": named["k_scale"]})),
    "levels of int8 without a sign": (
        {"kv_dtype": "int8"},
        _of(lambda named: {"v_cache": named["v_cache"].view(torch.uint8)}),
    ),
    "levels of int8 in float8": (
        {"kv_dtype": "int8"},
        _of(lambda named: {"v_cache": named["v_cache"].float().to(FLOAT8)}),
    ),
    "without a cap": ({"softcap": True}, _of(lambda _: {"softcap": 0.0})),
    "cap after the softmax's base": ({"softcap": True}, _of(lambda named: {"softcap": named["softcap"] * 1.44})),
    "without a window": ({"span": 21}, _of(lambda _: {"window": -1})),
    "a window of one key more": ({"span": 21}, _of(lambda _: {"window": 21})),
    "a window of one key less": ({"span": 21}, _of(lambda _: {"window": 19})),
}


@pytest.mark.parametrize("name", OTHERS)
def test_mutants_of_pages_scales_caps_and_windows_are_refused(name: str) -> None:
    dims, mutant = OTHERS[name]
    assert not accepted(OP, {**SMALL, **dims, "dtype": "bfloat16"}, mutant)


def test_the_least_level_of_int8_is_one_of_its_own() -> None:
    mutant = _of(lambda named: {"v_cache": named["v_cache"].clamp_min(-127)})
    assert not accepted(OP, {**SMALL, "kv_dtype": "int8", "dtype": "float32"}, mutant)


LONG = {"kv_len": 1008, "head_dim": 128, "softcap": True, "kv_dtype": "float8_e4m3fn"}
"""Where one key has nearly all of the weight, those of the others are below the normal numbers of float16."""


@pytest.mark.parametrize(
    ("dims", "dtype"),
    one_of_each(
        itertools.product(
            ({}, {"span": 21, "softcap": True}, {"kv_dtype": "float8_e4m3fn"}, {"kv_dtype": "int8"}, LONG),
            ("bfloat16", "float16", "float32"),
        ),
        lambda dims, dtype: str(dims),
    ),
)
@pytest.mark.few(1)
def test_weights_rounded_to_the_dtype_are_accepted(dims: Mapping[str, Any], dtype: str) -> None:
    small = {**SMALL, **dims, "dtype": dtype}
    assert accepted(OP, small, OP.reference)
    assert accepted(OP, small, halves(getattr(torch, dtype), False))


@pytest.mark.parametrize("name", ["without the last key", "a key more", "wrong by a hundredth"])
def test_mutants_of_long_sequences_are_refused(name: str) -> None:
    long = {**SMALL, **LONG, "kv_dtype": "auto", "dtype": "float16"}
    more = _of(lambda named: {"kv_lens": (named["kv_lens"] + 1).clamp_max(1008)})
    assert not accepted(OP, long, more if name == "a key more" else MUTANTS[name])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_weights_in_bfloat16_are_refused_for_wider_dtypes(dtype: str) -> None:
    assert not accepted(OP, {**SMALL, "dtype": dtype}, halves(torch.bfloat16, False))


Q, C, L, ONE = torch.ones(2, 1, 4, 8), torch.ones(2, 6, 2, 8), torch.tensor([6, 3], dtype=torch.int32), torch.ones(1)
T, C8, I8 = torch.tensor([[1], [0]], dtype=torch.int32), C.to(FLOAT8), C.to(torch.int8)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((Q[0], C, C, L), "q is 1x4x8 and k_cache is 2x6x2x8"),
        ((Q, C[0], C[0], L), "q is 2x1x4x8 and k_cache is 6x2x8"),
        ((Q[:, :, :3], C, C, L), "q has 3 heads of 8 elements but k_cache has 2 of 8"),
        ((Q[..., :4], C, C, L), "q has 4 heads of 4 elements but k_cache has 2 of 8"),
        ((Q, C, C[:, :5], L), "v_cache is float32 2x5x2x8 but k_cache is float32 2x6x2x8"),
        ((Q.half(), C, C, L), "q is float16 but k_cache is float32"),
        ((Q.int(), C, C, L), "q is int32, expected"),
        ((Q, C, C, L.long()), "kv_lens is int64, expected int32"),
        ((Q, C, C, L[:1]), "kv_lens has shape 1"),
        ((Q, C, C, L[None]), "kv_lens has shape 1x2"),
        ((Q, C, C, L, T.long()), "block_table is int64, expected int32"),
        ((Q, C, C, L, T[0]), "block_table has shape 1"),
        ((Q, C, C, L, T[:1]), "block_table has shape 1x1"),
        ((Q, C[:1], C[:1], L), "k_cache is 1x6x2x8 but q has 2 sequences"),
        ((Q, C, C, L, T.expand(2, 2**29)), "block_table has room for 3221225472 keys"),
        ((Q, C, C, L, None, ONE, ONE), "k_scale is given but k_cache is float32"),
        ((Q, C8, C8, L), "k_scale is None but k_cache is float8_e4m3fn"),
        ((Q, C8, C8, L, None, ONE, ONE.half()), "v_scale is float16 1 but v_cache is float8_e4m3fn"),
        ((Q.double(), C8, C8, L, None, ONE, ONE), "q is float64 but k_cache is float8_e4m3fn"),
        ((Q, I8, I8, L), "k_scale is None but k_cache is int8"),
        ((Q, I8, I8, L, None, ONE), "v_scale is None but v_cache is int8"),
        (
            (Q, I8, I8, L, None, torch.ones(2), ONE),
            "k_scale is float32 2 but k_cache is int8\n.*one element for all heads",
        ),
        ((Q, I8, I8, L, None, ONE.double(), ONE), "k_scale is float64 1 but k_cache is int8"),
        ((Q, I8, C8, L, None, ONE, ONE), "v_cache is float8_e4m3fn 2x6x2x8 but k_cache is int8 2x6x2x8"),
        ((Q.double(), I8, I8, L, None, ONE, ONE), "q is float64 but k_cache is int8"),
        ((Q, I8.view(torch.uint8), I8.view(torch.uint8), L, None, ONE, ONE), "q is float32 but k_cache is uint8"),
        ((Q, C, C, L, None, None, None, math.nan), "scale=nan"),
        ((Q, C, C, L, None, None, None, -math.inf), "scale=-inf"),
        ((Q, C, C, L, None, None, None, None, -1.0), "softcap=-1.0"),
        ((Q, C, C, L, None, None, None, None, math.nan), "softcap=nan"),
        ((Q, C, C, L, None, None, None, None, 0.0, -2), "window=-2"),
    ],
)
def test_what_it_refuses(args: tuple[object, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        registry.call(OP.name, *args)


@pytest.mark.parametrize("window", [2**30, 2**31 + 5, 2**62])
def test_a_window_that_no_sequence_fills_is_none(window: int) -> None:
    values = OP.bind((Q, C, C, L), {"window": window})
    assert OP.pose(OP.arguments(values)).span is False
    for name in NAMES:
        torch.testing.assert_close(run(name, *values), run(name, Q, C, C, L))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 5}, "heads=5 is no multiple of kv_heads=2"),
        ({"page": 7}, "page=7 and kv_len=96"),
        ({"span": 0}, "span=0"),
        ({"span": True}, "span=True"),
        ({"page": True}, "page=True"),
        ({"kv_dtype": "float8_e4m3fn", "dtype": "float64"}, "float64 with a cache of float8_e4m3fn"),
        ({"kv_len": 0}, "kv_len"),
    ],
)
def test_dimensions_that_no_call_has_are_refused(change: Mapping[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        OP.problem_of({**SMALL, "dtype": "float32", **change})


@pytest.mark.parametrize(
    ("lengths", "table", "message"),
    [
        ([6, 7], None, r"kv_lens\[1\] is 7, expected 0 to 6, the room of a sequence \(6 keys\)"),
        ([-1, 6], None, r"kv_lens\[0\] is -1, expected 0 to 6"),
        ([12, 13], [[0, 1], [1, 0]], r"kv_lens\[1\] is 13, expected 0 to 12, .*2 pages of 6"),
        ([7, 6], [[0, 2], [1, -1]], r"block_table\[0, 1\] is 2, expected 0 to 1, a page of the cache"),
        ([6, 1], [[0, 9], [-1, 0]], r"block_table\[1, 0\] is -1, expected 0 to 1"),
        ([6, 0], [[0, 9], [-1, -7]], ""),
        ([6, 0], None, ""),
    ],
)
def test_lengths_and_pages_outside_of_the_cache_are_found_where_data_are_checked(
    lengths: list[int], table: list[list[int]] | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_CHECK", "1")
    # data are checked before any kernel runs: none in C++ is compiled for it
    monkeypatch.setenv("CXX", "no-such-compiler")
    call = Dispatcher(Catalog()).op(OP.name)
    given = None if table is None else torch.tensor(table, dtype=torch.int32)
    lens = torch.tensor(lengths, dtype=torch.int32)
    if not message:
        call(Q, C, C, lens, given)
        return
    with pytest.raises(OutOfRangeError, match=message):
        call(Q, C, C, lens, given)
