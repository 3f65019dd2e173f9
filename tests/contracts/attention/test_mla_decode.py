"""mla_decode: latents in rows and in pages, lengths, what it refuses, and mutants that its tolerances refuse."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import registry
from registry.contracts import ATTENTION_DECODE
from registry.contracts import MLA_DECODE as OP
from registry.contracts.attention.decode_lengths import LENGTHS, lengths_of
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.errors import InvalidArgumentError, OutOfRangeError, UnsupportedError

from ...tiers import one_of_each
from ..accepting import accepted

Tensor = torch.Tensor
NAMES = ("torch.native", "cpp.tiles", "reference")
RANK, ROPE, SCALE = 24, 8, 0.2


def run(name: str, *values: Any) -> tuple[Tensor, Tensor]:
    if name == "reference":
        found = OP.reference(*values)
    else:
        with registry.using(mla_decode=name):
            found = registry.call(OP.name, *values)
    assert isinstance(found, tuple)
    return found[0], found[1]


def one_by_one(q: Tensor, latents: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor]:
    """Each head by itself, from latents [batch, kv_len, RANK + ROPE], in float64."""
    batch, heads, _ = q.shape
    out, lse = torch.zeros(batch, heads, RANK).double(), torch.full((batch, heads), -math.inf).double()
    for b, length in enumerate(lengths):
        own = latents[b, :length].double()
        for head in range(heads if length else 0):
            logits = SCALE * (own @ q[b, head].double())
            out[b, head] = logits.softmax(0) @ own[:, :RANK]
            lse[b, head] = logits.exp().sum().log()
    return out, lse


def same(found: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> None:
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


def drawn(batch: int, heads: int, kv_len: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, heads, RANK + ROPE), torch.randn(batch, kv_len, RANK + ROPE)


# C++ of another number of heads is compiled anew
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if name.startswith("cpp") else ()) for name in NAMES]
)
def test_each_head_weighs_the_latents_of_its_sequence(name: str) -> None:
    q, latents = drawn(4, 19, 70)
    lengths = torch.tensor([70, 0, 1, 33], dtype=torch.int32)
    found = run(name, q, latents, lengths, RANK, SCALE)
    same(found, one_by_one(q, latents, lengths.tolist()))
    assert torch.equal(found[0][1], torch.zeros(19, RANK))
    assert found[1][1].eq(-math.inf).all()
    assert found[0].is_contiguous()


@pytest.mark.parametrize("name", NAMES)
def test_latents_are_where_the_table_says_and_nothing_behind_a_length_matters(name: str) -> None:
    q, latents = drawn(3, 5, 24)
    table = torch.tensor([[7, 0, 3], [2, -5, 10**6], [9, 4, 77]], dtype=torch.int32)
    lengths = torch.tensor([24, 5, 16], dtype=torch.int32)
    cache = torch.full((11, 8, RANK + ROPE), torch.nan)
    for b, row in enumerate(table.tolist()):
        for number in range(-(-int(lengths[b]) // 8)):
            own = latents[b, number * 8 : min(number * 8 + 8, int(lengths[b]))]
            cache[row[number], : len(own)] = own
    same(run(name, q, cache, lengths, RANK, SCALE, table), one_by_one(q, latents, lengths.tolist()))


@pytest.mark.parametrize("name", NAMES)
def test_queries_and_caches_may_be_parts_of_wider_tensors(name: str) -> None:
    q = torch.randn(2, 3, 19, RANK + ROPE + 3)[:, 1, :, : RANK + ROPE]
    latents = torch.randn(2, 9, 2, RANK + ROPE)[:, :, 1]
    lengths = torch.tensor([9, 4], dtype=torch.int32)
    same(run(name, q, latents, lengths, RANK, SCALE), one_by_one(q, latents, [9, 4]))


def test_it_is_attention_decode_of_one_head_of_keys_whose_values_are_a_part_of_them() -> None:
    q, latents = drawn(3, 6, 40)
    lengths = torch.tensor([40, 1, 17], dtype=torch.int32)
    values = torch.nn.functional.pad(latents[..., :RANK], (0, ROPE))
    out, lse = ATTENTION_DECODE.reference(q[:, None], latents[:, :, None], values[:, :, None], lengths, scale=SCALE)  # type: ignore[misc]
    found = registry.call(OP.name, q, latents, lengths, RANK, SCALE)
    same(found, (out[:, 0, :, :RANK].double(), lse[..., 0].double()))


def test_a_gradient_is_refused() -> None:
    q, latents = drawn(1, 2, 5)
    with pytest.raises(UnsupportedError, match="mla_decode"):
        registry.call(OP.name, q.requires_grad_(), latents, torch.tensor([5], dtype=torch.int32), RANK, SCALE)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_the_floor_reads_each_latent_once(lengths: str) -> None:
    problem = OP.problem_of({**SMALL, "lengths": lengths, "dtype": "bfloat16"})
    keys, rows, width = sum(lengths_of(problem)), 3 * 5, RANK + ROPE
    floor = OP.floor(problem)
    assert floor.bytes == 2 * (keys * width + rows * (width + RANK)) + 4 * (rows + 3)
    assert floor.flop == 2 * keys * 5 * (width + RANK)
    paged = OP.floor(OP.problem_of({**SMALL, "lengths": lengths, "page": 16, "dtype": "bfloat16"}))
    assert floor.bytes < paged.bytes <= floor.bytes + 4 * 3 * 6


def _of(change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Callable[..., Any]:
    """The reference with arguments by ``change(named)``, which returns those that differ."""

    def compute(*values: Any) -> Any:
        named = dict(zip(OP.parsed.names, values, strict=True))
        return OP.reference(**{**named, **change(named)})

    return compute


def _after(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Callable[..., Any]:
    return lambda *values: change(*OP.reference(*values))  # type: ignore[misc]


def _without(part: slice) -> Callable[..., Any]:
    """A part of the queries as 0: logits without it."""

    def change(named: Mapping[str, Any]) -> Mapping[str, Any]:
        q = named["q"].clone()
        q[..., part] = 0.0
        return {"q": q}

    return _of(change)


SMALL: Mapping[str, Any] = {
    "batch": 3, "heads": 5, "kv_len": 96, "kv_lora_rank": RANK, "rope_dim": ROPE, "page": False, "lengths": "uniform",
}  # fmt: skip
MUTANTS: Mapping[str, Callable[..., Any]] = {
    "zeros": _after(lambda out, lse: (torch.zeros_like(out), lse)),
    "lse in base 2": _after(lambda out, lse: (out, lse / math.log(2))),
    "the first sequence for all": _after(lambda out, lse: (out[:1].expand_as(out), lse)),
    "heads exchanged": _after(lambda out, lse: (out.roll(1, 1), lse)),
    "lse of another head": _after(lambda out, lse: (out, lse.roll(1, 1))),
    "the last element left out": _after(lambda out, lse: (out * (torch.arange(RANK) < RANK - 1), lse)),
    "without the last token": _of(lambda named: {"kv_lens": named["kv_lens"] - 1}),
    "a token more": _of(lambda named: {"kv_lens": (named["kv_lens"] + 1).clamp_max(96)}),
    "the longest for all": _of(lambda named: {"kv_lens": named["kv_lens"] * 0 + 96}),
    "without the rotated part": _without(slice(RANK, None)),
    "without the latent": _without(slice(RANK)),
    "without the last element of a row": _without(slice(RANK + ROPE - 1, None)),
    "the rotated part for values": _of(
        lambda named: {name: named[name].roll(ROPE, -1) for name in ("q", "kv_cache")},
    ),
    "a scale wrong by a hundredth": _of(lambda named: {"scale": named["scale"] * 0.99}),
    "wrong by a hundredth": _after(lambda out, lse: (out * 1.01, lse)),
    "latents in float8": _of(
        lambda named: {"kv_cache": named["kv_cache"].to(torch.float8_e4m3fn).to(named["q"].dtype)},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("mutant", "dtype"), one_of_each(
    [(name, dtype) for name in MUTANTS for dtype in ("float32", "bfloat16", "float16")], lambda name, _: name
))  # fmt: skip
def test_mutants_are_refused(mutant: str, dtype: str) -> None:
    assert not accepted(OP, {**SMALL, "dtype": dtype}, MUTANTS[mutant])


@pytest.mark.parametrize(
    "mutant",
    [
        lambda named: {"block_table": torch.arange(18, dtype=torch.int32).view(3, 6)},
        lambda named: {"block_table": named["block_table"].roll(1, 0)},
        lambda named: {"block_table": named["block_table"].flip(1)},
    ],
    ids=["pages in order", "the table of another", "pages backwards"],
)
def test_mutants_of_pages_are_refused(mutant: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
    assert not accepted(OP, {**SMALL, "page": 16, "dtype": "bfloat16"}, _of(mutant))


def _rounded(q: Tensor, cache: Tensor, lengths: Tensor, rank: int, scale: float, _table: None) -> tuple[Tensor, Tensor]:
    """Weights rounded to the dtype before they are multiplied, as tensor cores take them."""
    seen = torch.arange(cache.shape[1]) < lengths[:, None]
    keys = cache.masked_fill(~seen[..., None], 0.0).float()
    logits = (q.float() @ keys.transpose(1, 2) * scale).masked_fill(~seen[:, None], -math.inf)
    most = logits.amax(-1, keepdim=True).nan_to_num(neginf=0.0)
    weights = (logits - most).exp().masked_fill(~seen[:, None], 0.0)
    total = weights.sum(-1, keepdim=True)
    out = weights.to(q.dtype).float() @ keys[..., :rank]
    return torch.where(total == 0, 0.0, out / total).to(q.dtype), logits.logsumexp(-1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.few(1)
def test_weights_rounded_to_the_dtype_are_accepted(dtype: str) -> None:
    for dims in (SMALL, {**SMALL, "heads": 2, "kv_len": 500, "kv_lora_rank": 128}):
        assert accepted(OP, {**dims, "dtype": dtype}, _rounded)


Q, C, L = torch.ones(2, 4, 8), torch.ones(2, 6, 8), torch.tensor([6, 3], dtype=torch.int32)
T = torch.tensor([[1], [0]], dtype=torch.int32)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((Q[0], C, L, 6, 1.0), "q is 4x8 and kv_cache is 2x6x8"),
        ((Q, C[0], L, 6, 1.0), "q is 2x4x8 and kv_cache is 6x8"),
        ((Q[..., :6], C, L, 4, 1.0), "a row of q has 6 elements but one of kv_cache has 8"),
        ((Q.half(), C, L, 6, 1.0), "q is float16 but kv_cache is float32"),
        ((Q.int(), C, L, 6, 1.0), "q is int32, expected"),
        ((Q, C, L, 8, 1.0), "kv_lora_rank=8 but a row of kv_cache has 8 elements"),
        ((Q, C, L, 0, 1.0), "kv_lora_rank=0"),
        ((Q, C, L, 6, math.nan), "scale=nan"),
        ((Q, C, L.long(), 6, 1.0), "kv_lens is int64, expected int32"),
        ((Q, C, L[:1], 6, 1.0), "kv_lens has shape 1"),
        ((Q, C[:1], L, 6, 1.0), "kv_cache is 1x6x8 but q has 2 sequences"),
        ((Q, C, L, 6, 1.0, T.long()), "block_table is int64, expected int32"),
        ((Q, C, L, 6, 1.0, T[:1]), "block_table has shape 1x1"),
        ((Q, C, L, 6), "scale"),
    ],
)
def test_what_it_refuses(args: tuple[object, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        registry.call(OP.name, *args)


@pytest.mark.parametrize(("change", "message"), [({"page": 7}, "page=7 and kv_len=96"), ({"rope_dim": 0}, "rope_dim")])
def test_dimensions_that_no_call_has_are_refused(change: Mapping[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        OP.problem_of({**SMALL, "dtype": "float32", **change})


@pytest.mark.parametrize(
    ("lengths", "table", "message"),
    [
        ([6, 7], None, r"mla_decode: kv_lens\[1\] is 7, expected 0 to 6"),
        ([6, 1], [[0, 9], [-1, 0]], r"mla_decode: block_table\[1, 0\] is -1, expected 0 to 1"),
        ([6, 0], [[0, 9], [-1, -7]], ""),
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
    args = (Q, C, torch.tensor(lengths, dtype=torch.int32), 6, 1.0, given)
    if not message:
        call(*args)
        return
    with pytest.raises(OutOfRangeError, match=message):
        call(*args)


def _cut_off(q: Tensor, cache: Tensor, lengths: Tensor, rank: int, scale: float, _table: None) -> Any:
    """The lse by logits as tensor cores add them: 16 products at a time to a float32 sum that is cut off."""
    out, _ = OP.reference(q, cache, lengths, rank, scale)
    seen = torch.arange(cache.shape[1]) < lengths[:, None]
    keys = cache.masked_fill(~seen[..., None], 0.0)
    total = torch.zeros(cache.shape[0], q.shape[1], cache.shape[1])
    for start in range(0, q.shape[-1], 16):
        step = slice(start, start + 16)
        exact = total.double() + q[..., step].double() @ keys[..., step].double().transpose(1, 2)
        total = exact.float()
        over = total.double().abs() > exact.abs()
        total = torch.where(over, torch.nextafter(total, torch.zeros_like(total)), total)
    return out, (total * scale).masked_fill(~seen[:, None], -math.inf).logsumexp(-1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sums_that_are_cut_off_are_accepted_of_long_latents(dtype: str) -> None:
    dims = {**SMALL, "heads": 2, "kv_len": 40, "kv_lora_rank": 512, "rope_dim": 64}
    assert accepted(OP, {**dims, "dtype": dtype}, _cut_off)


class _Largest(TorchDispatchMode):
    """Remembers the bytes of the largest storage that an operator of torch returns."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else (made,):
            if isinstance(one, Tensor):
                self.nbytes = max(self.nbytes, one.untyped_storage().nbytes())
        return made


def test_the_reference_holds_no_latent_twice_for_its_heads() -> None:
    q, latents = drawn(2, 64, 100)
    with _Largest() as largest:
        OP.reference(q, latents, torch.tensor([100, 100], dtype=torch.int32), RANK, SCALE)
    # the logits of all heads are more than the latents, which heads share
    assert largest.nbytes <= 64 * latents.nbytes / 4
