"""Ops that write to caches, and rotations, on a GPU: parts of fused tensors, captured graphs, checks of data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

import registry
from registry.arguments.schema import with_tensors
from registry.contracts import KV_CACHE_APPEND, ROTARY_EMBEDDING, ROTARY_KV_APPEND
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.warning import DispatchWarning
from registry.errors import OutOfRangeError

HEADS, KV_HEADS, WIDTH, SIZE = 8, 2, 128, 16
NAMES = ("torch.native", "triton.block", "torch.compile")


def fused(tokens: int) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
    """A fused qkv, and its three parts [tokens, heads, width]."""
    whole = torch.randn(tokens, (HEADS + 2 * KV_HEADS) * WIDTH, device="cuda", dtype=torch.bfloat16)
    parts = whole.split([HEADS * WIDTH, KV_HEADS * WIDTH, KV_HEADS * WIDTH], -1)
    return whole, [part.unflatten(-1, (-1, WIDTH)) for part in parts]


def table() -> torch.Tensor:
    angles = torch.outer(torch.arange(512.0), 10_000.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH))
    return torch.cat((angles.cos(), angles.sin()), -1).cuda()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("tokens", [1, 77])
def test_parts_of_a_fused_tensor_are_rotated_where_they_are(name: str, is_neox: bool, tokens: int) -> None:
    whole, (query, key, value) = fused(tokens)
    positions, kept = torch.randint(512, (tokens,), device="cuda"), value.clone()
    right = [query.double(), key.double()]
    ROTARY_EMBEDDING.reference(positions, *right, WIDTH, table().double(), is_neox)
    with registry.using(rotary_embedding=name):
        registry.call("rotary_embedding", positions, query, key, WIDTH, table(), is_neox)
    for found, expected in zip((query, key), right, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=2.0**-7, atol=2.0**-7)
    assert torch.equal(value, kept)
    assert whole.data_ptr() == query.data_ptr()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, dtype) for name in NAMES[:2] for dtype in (torch.bfloat16, torch.float8_e4m3fn)),
        *((name, torch.int8) for name in ("torch.native", "triton.block_int8")),
    ],
    ids=str,
)
def test_captured_graphs_write_to_the_slots_of_their_replays(name: str, dtype: torch.dtype) -> None:
    _, (_, key, value) = fused(5)
    caches = [torch.zeros(4, SIZE, KV_HEADS, WIDTH, device="cuda").to(dtype) for _ in range(2)]
    slots = torch.tensor([3, -1, 40, 17, 63], device="cuda")
    scaled = dtype.itemsize == 1
    scales: list[Any] = [torch.full((1,), 0.25, device="cuda") if scaled else None for _ in range(2)]
    with registry.using(kv_cache_append=name):
        registry.call("kv_cache_append", key, value, *caches, slots, *scales)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            registry.call("kv_cache_append", key, value, *caches, slots, *scales)
    for drawn in ([60, 61, 0, -1, 2], [-1, -1, -1, -1, -1], [9, 8, 7, 6, 5]):
        slots.copy_(torch.tensor(drawn))
        key.copy_(torch.randn_like(key))
        right = with_tensors(caches, torch.clone)
        KV_CACHE_APPEND.reference(key, value, *right, slots, *scales)
        graph.replay()
        for found, expected in zip(caches, right, strict=True):
            assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("name", NAMES[:2])
def test_a_rotation_with_append_is_captured_and_replayed(name: str) -> None:
    """Over parts of a fused tensor, and a cache with heads before tokens, whose length all sequences share."""
    _, parts = fused(3)
    given = [part.unflatten(0, (3, 1)) for part in parts]
    caches = [
        torch.zeros(3, KV_HEADS, 20, WIDTH, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(2)
    ]
    length, positions = torch.tensor(4, device="cuda"), torch.tensor([[7]], device="cuda").expand(3, 1)
    values = (*given, table(), *caches, length.expand(3), positions)
    with registry.using(rotary_kv_append=name):
        registry.call("rotary_kv_append", *values)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            rotated, lengths = registry.call("rotary_kv_append", *values)
    for new in (0, 13, 19):
        length.fill_(new)
        given[1].copy_(torch.randn_like(given[1]))
        wide = with_tensors(values, lambda x: x.double() if x.is_floating_point() else x)
        right, _ = ROTARY_KV_APPEND.reference(*wide)
        graph.replay()
        torch.testing.assert_close(rotated.double(), right, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(caches[0][:, new].double(), wide[4][:, new], rtol=2e-2, atol=2e-2)
        assert torch.equal(caches[1][:, new], given[2][:, 0])
        assert lengths.tolist() == [new + 1] * 3


def test_tokens_that_have_no_room_are_not_written() -> None:
    _, parts = fused(6)
    given = [part.unflatten(0, (3, 2)) for part in parts]
    rooms = [torch.randn(5, 20, KV_HEADS, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    before = [x.clone() for x in rooms]
    lengths = torch.tensor([19, 20, 1_000_000], device="cuda", dtype=torch.int32)
    angles = torch.zeros(3, 2, WIDTH, device="cuda", dtype=torch.bfloat16)
    with registry.using(rotary_kv_append="triton.block"):
        _, kv_lens = registry.call("rotary_kv_append", *given, angles, *(x[1:4] for x in rooms), lengths)
    assert kv_lens.tolist() == [20, 20, 20]
    for own, kept in zip(rooms, before, strict=True):
        assert {tuple(slot) for slot in (own != kept).nonzero()[:, :2].tolist()} == {(1, 19)}


def test_data_are_checked_but_not_in_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_CHECK", "1")
    call = Dispatcher(Catalog()).op("rotary_embedding")
    _, (query, key, _) = fused(3)
    positions = torch.tensor([0, 511, 5], device="cuda")
    call(positions, query, key, WIDTH, table(), True)
    with pytest.raises(OutOfRangeError, match=r"positions\[1\] is 512, expected 0 to 511"):
        call(positions + 1, query, key, WIDTH, table(), True)
    cache = table()
    graph = torch.cuda.CUDAGraph()
    with pytest.warns(DispatchWarning, match="KERNEL_REGISTRY_CHECK=1 checks no call"), torch.cuda.graph(graph):
        call(positions, query, key, WIDTH, cache, True)
