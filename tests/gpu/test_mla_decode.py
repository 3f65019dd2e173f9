"""mla_decode on a GPU: kinds of inputs, replays with other lengths and pages, views, and a cache beyond 2 GiB."""

from __future__ import annotations

from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from registry.contracts import MLA_DECODE as OP

from .decoding import DecodeCalls

NAMES = ("torch.native", "triton.whole", "triton.split_kv", "torch.compile")
DIMS: dict[str, Any] = {
    "batch": 4, "heads": 128, "kv_len": 2048, "kv_lora_rank": 512, "rope_dim": 64, "page": 64, "lengths": "uniform",
    "dtype": "bfloat16",
}  # fmt: skip


CALLS = DecodeCalls(OP, DIMS, lengths=2, table=5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["normal", "beyond", "nan", "last_key"])
def test_every_kind_of_inputs(name: str, kind: str) -> None:
    CALLS.is_right_at(name, kind, ({}, {"page": False, "heads": 16}, {"page": 16, "dtype": "float16"}))


@pytest.mark.parametrize("name", NAMES[:3])
def test_a_captured_graph_follows_lengths_and_pages(name: str) -> None:
    CALLS.follows_lengths_and_pages(name)


@pytest.mark.parametrize("name", NAMES[1:3])
def test_results_are_the_same_bits_each_time(name: str) -> None:
    CALLS.has_the_same_bits_each_time(name, kv_len=32768)


@pytest.mark.parametrize("name", NAMES[1:3])
def test_other_sizes_run_what_is_loaded(name: str) -> None:
    sizes = ((1, 192), (2, 2048), (7, 4096), (130, 256))
    CALLS.is_right_at(name, "normal", ({"batch": batch, "kv_len": kv_len} for batch, kv_len in sizes))


def test_a_cache_beyond_two_gigabytes() -> None:
    # 2 ** 31 elements and more, of which the last pages are read
    blocks = 2**31 // (64 * 576) + 8
    cache = torch.empty(blocks, 64, 576, device="cuda", dtype=torch.bfloat16)
    cache[blocks - 8 :].normal_()
    table = torch.arange(blocks - 8, blocks, device="cuda", dtype=torch.int32).view(2, 4)
    q = torch.randn(2, 16, 576, device="cuda", dtype=torch.bfloat16)
    lengths = torch.tensor([256, 100], device="cuda", dtype=torch.int32)
    small = OP.bind((q, cache[blocks - 8 :].clone(), lengths, 512, 0.07, table - (blocks - 8)), {})
    for name in NAMES[1:3]:
        CALLS.is_right(name, q, cache, lengths, 512, 0.07, table, as_of=small)
