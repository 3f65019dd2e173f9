"""kv_cache_append: slots, float8, int8, what it refuses, and mutants that its comparison refuses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

import registry
from registry.contracts import KV_CACHE_APPEND as OP
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.errors import InvalidArgumentError, OutOfRangeError

from ...tiers import one_of_each
from ..accepting import accepted

Tensor = torch.Tensor
NAMES = ("torch.native", "cpp.tokens", "reference")
FLOAT8 = torch.float8_e4m3fn


def run(name: str, *values: Any) -> None:
    if name == "reference":
        assert OP.reference(*values) is None
        return
    with registry.using(kv_cache_append=name):
        assert registry.call(OP.name, *values) is None


def appended(cache: Tensor, x: Tensor, slots: Tensor, scale: Tensor | None) -> Tensor:
    """The cache after the tokens were written one by one."""
    result = cache.clone()
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            most = 127 if cache.dtype == torch.int8 else 448
            new = x[token] if scale is None else (x[token].float() / scale).clamp(-most, most)
            new = new.round().nan_to_num(0.0) if cache.dtype == torch.int8 else new
            result[slot // cache.shape[1], slot % cache.shape[1]] = new.to(cache.dtype)
    return result


def equal(found: Tensor, right: Tensor) -> bool:
    return torch.equal(found.float().nan_to_num(1e9), right.float().nan_to_num(1e9))


@pytest.mark.parametrize(
    ("name", "kept", "dtype"),
    one_of_each(
        itertools.product(NAMES, (None, FLOAT8, torch.int8), (torch.float32, torch.bfloat16, torch.float16)),
        lambda name, kept, dtype: (name, kept),
    ),
)
@pytest.mark.few(3)
def test_tokens_are_written_to_their_slots(name: str, dtype: torch.dtype, kept: torch.dtype | None) -> None:
    for (tokens, heads, width, size), kind in (
        ((7, 2, 64, 16), torch.int64), ((1, 1, 20, 1), torch.int32), ((40, 3, 9, 4), torch.int64),
    ):  # fmt: skip
        blocks = tokens // size + 2
        key, value = (torch.randn(tokens + 2, heads, width).mul(100).to(dtype) for _ in range(2))
        key[0, 0, :2] = torch.tensor([torch.nan, -0.0])
        slots = torch.randperm(blocks * size)[:tokens].to(kind)
        slots[1::3] = -1
        caches = [torch.randn(blocks, size, heads, width).to(kept or dtype) for _ in range(2)]
        scales = [torch.tensor([0.5]), torch.tensor([0.1])] if kept else [None, None]
        right = [appended(*each) for each in zip(caches, (key, value), (slots, slots), scales, strict=True)]
        run(name, key, value, *caches, slots, *scales)
        assert all(map(equal, caches, right))


@pytest.mark.parametrize("name", NAMES)
def test_each_level_of_float8_and_each_half_between_two(name: str) -> None:
    levels = torch.arange(0x7F, dtype=torch.uint8).view(FLOAT8).float()
    halves = (levels[1:] + levels[:-1]) / 2
    numbers = torch.cat((levels, halves, halves.nextafter(levels[1:]), torch.tensor([449.0, 1e30, torch.inf])))
    x = torch.cat((numbers, -numbers)).reshape(2, 1, -1)
    cache = torch.zeros(2, 1, 1, x.shape[2]).to(FLOAT8)
    run(name, x, x, cache, cache.clone(), torch.tensor([1, 0]), torch.ones(1), torch.ones(1))
    assert torch.equal(
        cache.view(torch.uint8).flatten(1), x.flip(0).clamp(-448, 448).to(FLOAT8).view(torch.uint8)[:, 0]
    )


@pytest.mark.parametrize("name", NAMES)
def test_each_level_of_int8_and_each_half_between_two(name: str) -> None:
    levels = torch.arange(-127.0, 128.0)
    halves = (levels[1:] + levels[:-1]) / 2
    beside = [halves.nextafter(levels[1:]), halves.nextafter(levels[:-1])]
    special = torch.tensor([127.5, 128.0, 1e30, torch.inf, -127.5, -128.0, -torch.inf, torch.nan, -0.0])
    x = torch.cat((levels, halves, *beside, special)).view(1, 1, -1).mul(0.25)
    cache = torch.full((1, 2, 1, x.shape[2]), 99, dtype=torch.int8)
    run(name, x, x, cache, cache.clone(), torch.tensor([1]), torch.tensor([0.25]), torch.ones(1))
    right = (x / 0.25).clamp(-127, 127).round().nan_to_num(0.0)
    assert torch.equal(cache[0, 1].float(), right[0])
    assert cache[0, 0].eq(99).all()


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_written_where_all_tokens_are_skipped(name: str) -> None:
    cache, x = torch.randn(2, 4, 1, 8), torch.randn(3, 1, 8)
    before = cache.clone()
    run(name, x, x, cache, torch.empty_like(cache), torch.full((3,), -1))
    assert torch.equal(cache, before)


def test_there_may_be_no_tokens() -> None:
    cache, x = torch.randn(2, 4, 1, 8), torch.randn(0, 1, 8)
    before = cache.clone()
    registry.call(OP.name, x, x, cache, torch.empty_like(cache), torch.empty(0, dtype=torch.int64))
    assert torch.equal(cache, before)


@pytest.mark.parametrize("name", NAMES)
def test_parts_of_a_fused_tensor_and_caches_in_other_orders(name: str) -> None:
    tokens, heads, width, size = 5, 2, 16, 4
    fused = torch.randn(tokens, 4 * heads * width)
    key, value = (fused[:, place : place + heads * width].unflatten(-1, (heads, width)) for place in (32, 64))
    # heads before slots, and keys beside values
    key_cache = torch.randn(3, heads, size, width).transpose(1, 2)
    value_cache = torch.randn(2, 3, size, heads, width)[1]
    slots = torch.tensor([11, 0, -1, 5, 4])
    right = [appended(key_cache, key, slots, None), appended(value_cache, value, slots, None)]
    run(name, key, value, key_cache, value_cache, slots)
    assert torch.equal(key_cache, right[0])
    assert torch.equal(value_cache, right[1])


def _of(change: Callable[..., Any]) -> Callable[..., None]:
    """The reference with arguments by ``change(named)``, which returns those that differ."""

    def compute(*values: Any) -> None:
        named = dict(zip(OP.parsed.names, values, strict=True))
        OP.reference(*{**named, **change(named)}.values())

    return compute


def _first_head_left(*values: Any) -> None:
    before = values[2][:, :, :1].clone()
    OP.reference(*values)
    values[2][:, :, :1] = before


def _last_cell_left(*values: Any) -> None:
    before = values[3][..., -1:].clone()
    OP.reference(*values)
    values[3][..., -1:] = before


def _others_cleared(*values: Any) -> None:
    values[2].zero_()
    OP.reference(*values)


def _unclamped(key: Tensor, value: Tensor, key_cache: Tensor, *rest: Any) -> None:
    OP.reference(key, value, key_cache, *rest)
    wide = key_cache.float()
    key_cache.copy_(torch.where(wide.abs() == 448, torch.nan, wide).to(key_cache.dtype))


def _cut(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor, *scales: Tensor) -> None:
    quotient = (key.float() / scales[0]).clamp(-448, 448)
    cut = (quotient.view(torch.int32) & -0x100000).view(torch.float32)
    OP.reference(cut, value.float(), key_cache, value_cache, slots, torch.ones(1), scales[1])


MUTANTS: Mapping[str, Callable[..., Any]] = {
    "nothing is written": lambda *_: None,
    "keys alone": lambda k, v, kc, vc, *rest: OP.reference(k, v, kc, vc.clone(), *rest),
    "values alone": lambda k, v, kc, vc, *rest: OP.reference(k, v, kc.clone(), vc, *rest),
    "keys for values": _of(lambda named: {"value": named["key"]}),
    "the next slot": _of(lambda named: {"slot_mapping": (named["slot_mapping"] + 1) % 8}),
    "the slot of another token": _of(lambda named: {"slot_mapping": named["slot_mapping"].roll(1)}),
    "skipped tokens to slot 0": _of(lambda named: {"slot_mapping": named["slot_mapping"].clamp_min(0)}),
    "without the last token": _of(lambda named: {"slot_mapping": named["slot_mapping"][:-1]}),
    "heads exchanged": _of(lambda named: {"key": named["key"].roll(1, 1)}),
    "a head left": _first_head_left,
    "the last element left": _last_cell_left,
    "other slots cleared": _others_cleared,
    "wrong by a tenth": _of(lambda named: {"key": named["key"] * 1.1}),
}
FLOAT8_MUTANTS: Mapping[str, Callable[..., Any]] = {
    "times the scale": _of(lambda named: {"k_scale": 1 / named["k_scale"]}),
    "one scale for both": _of(lambda named: {"v_scale": named["k_scale"]}),
    "no scale": _of(lambda named: {"k_scale": torch.ones(1)}),
    "NaN beyond the range": _unclamped,
    "cut off": _cut,
}


def _levels(change: Callable[[Tensor], Tensor]) -> Callable[..., None]:
    """The reference with levels of keys by ``change(quotients)``."""

    def compute(key: Tensor, *rest: Tensor) -> None:
        value, key_cache, value_cache, slots, k_scale, v_scale = rest
        levels = change(key.float() / k_scale)
        OP.reference(levels, value.float(), key_cache, value_cache, slots, torch.ones(1), v_scale)

    return compute


def _wrapped(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor, *scales: Tensor
) -> None:
    before = key_cache.clone()
    OP.reference(key, value, key_cache, value_cache, slots, *scales)
    key_cache.copy_(torch.where((key_cache == 127) & (before != 127), -128, key_cache))


INT8_MUTANTS: Mapping[str, Callable[..., Any]] = {
    **{name: FLOAT8_MUTANTS[name] for name in ("times the scale", "one scale for both", "no scale")},
    "cut off": _levels(torch.trunc),
    "halves away from zero": _levels(lambda x: (x.abs() + 0.5).floor() * x.sign()),
    "halves up": _levels(lambda x: (x + 0.5).floor()),
    "NaN as the greatest": _levels(lambda x: x.nan_to_num(127.0)),
    "a level less": _levels(lambda x: x.clamp(-126, 126)),
    "wrapped around": _wrapped,
}
OF_KIND: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "auto": MUTANTS,
    "float8_e4m3fn": {**MUTANTS, **FLOAT8_MUTANTS},
    "int8": {**MUTANTS, **INT8_MUTANTS},
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", OF_KIND)
def test_the_comparison_accepts_what_is_right_and_refuses_mutants(kind: str, dtype: str) -> None:
    dims = {"tokens": 9, "kv_heads": 2, "head_dim": 24, "block_size": 4, "kv_dtype": kind, "dtype": dtype}
    assert accepted(OP, dims, OP.reference)
    for name, mutant in OF_KIND[kind].items():
        assert not accepted(OP, dims, mutant), name


X, C, S, ONE = torch.ones(3, 2, 8), torch.ones(5, 4, 2, 8), torch.arange(3), torch.ones(1)
C8, I8 = C.to(FLOAT8), C.to(torch.int8)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((X, X, C, C.clone(), S.float()), "slot_mapping is float32, expected int64 or int32"),
        ((X, X, C, C.clone(), S[None]), "slot_mapping has shape 1x3"),
        ((X, X, C, C.clone(), torch.arange(4)), "key has shape 3x2x8 but slot_mapping has 4 tokens"),
        (
            (X, X[:, :1], C, C.clone(), S),
            "value has shape 3x1x8 but slot_mapping has 3 tokens and key_cache is 5x4x2x8",
        ),
        ((X, X, C[0], C[1], S), "key_cache has shape 4x2x8"),
        ((X, X, C, C[:4].clone(), S), "value_cache is float32 4x4x2x8 but key_cache is float32 5x4x2x8"),
        ((X, X.half(), C, C.clone(), S), "key is float32 but value is float16"),
        ((X, X, C.half(), C.half(), S), "key is float32 but key_cache is float16"),
        ((X, X, C, C.clone(), S, ONE, ONE), "k_scale is given but key_cache is float32"),
        ((X, X, C8, C8.clone(), S), "k_scale is None but key_cache is float8_e4m3fn"),
        ((X, X, C8, C8.clone(), S, ONE, ONE.half()), "v_scale is float16 1 but value_cache is float8_e4m3fn"),
        ((X, X, C8, C8.clone(), S, torch.ones(2), ONE), "k_scale is float32 2 but"),
        ((X, X, I8, I8.clone(), S), "k_scale is None but key_cache is int8\n.*float32 of one element"),
        ((X, X, I8, I8.clone(), S, ONE), "v_scale is None but value_cache is int8"),
        ((X, X, I8, I8.clone(), S, ONE, ONE.half()), "v_scale is float16 1 but value_cache is int8"),
        ((X, X, I8, I8.clone(), S, torch.ones(2), ONE), "k_scale is float32 2 but key_cache is int8"),
        ((X, X, I8, C8.clone(), S, ONE, ONE), "value_cache is float8_e4m3fn 5x4x2x8 but key_cache is int8"),
        ((X, X, I8.view(torch.uint8), I8.clone(), S, ONE, ONE), "key_cache is uint8, expected float32, .* or int8"),
        ((X, X, C, C, S), "key_cache and value_cache share memory"),
        ((X, X, torch.ones(1, 4, 2, 8).expand(5, 4, 2, 8), C, S), "key_cache is expanded"),
    ],
)
def test_what_it_refuses(args: tuple[object, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        registry.call(OP.name, *args)


def test_a_slot_beyond_the_cache_is_found_where_data_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_CHECK", "1")
    # data are checked before any kernel runs: none in C++ is compiled for it
    monkeypatch.setenv("CXX", "no-such-compiler")
    call = Dispatcher(Catalog()).op(OP.name)
    call(X, X, C.clone(), C.clone(), torch.tensor([19, -1, 0]))
    message = r"kv_cache_append: slot_mapping\[1\] is 20, expected less than 20, 5 blocks of 4, or -1 to skip"
    with pytest.raises(OutOfRangeError, match=message):
        call(X, X, C.clone(), C.clone(), torch.tensor([19, 20, 0]))


def test_a_cache_without_blocks_takes_tokens_that_are_skipped() -> None:
    cache = torch.ones(0, 4, 2, 8)
    registry.call(OP.name, X, X, cache, cache.clone(), torch.full((3,), -1))
