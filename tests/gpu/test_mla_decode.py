"""mla_decode on a GPU: kinds of inputs, replays with other lengths and pages, views, and a cache beyond 2 GiB."""

from __future__ import annotations

from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

import registry
from registry.contracts import MLA_DECODE as OP
from registry.correctness.bits import same_bits
from registry.correctness.numerics import compare, own_error, reference64

NAMES = ("torch.native", "triton.whole", "triton.split_kv", "torch.compile")
DIMS: dict[str, Any] = {
    "batch": 4, "heads": 128, "kv_len": 2048, "kv_lora_rank": 512, "rope_dim": 64, "page": 64, "lengths": "uniform",
    "dtype": "bfloat16",
}  # fmt: skip


def drawn(kind: str = "normal", **dims: Any) -> tuple[Any, ...]:
    problem = OP.problem_of({**DIMS, **dims})
    return OP.inputs(problem, kind, torch.Generator("cuda").manual_seed(3))


def check(found: Any, values: tuple[Any, ...]) -> None:
    problem = OP.pose(OP.arguments(values))
    reference = reference64(OP, values)
    verdict = compare(OP, problem, found, reference, own_error(OP, problem, values, reference), values)
    assert verdict.ok, verdict


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["normal", "beyond", "nan", "last_key"])
def test_every_kind_of_inputs(name: str, kind: str) -> None:
    for more in ({}, {"page": False, "heads": 16}, {"page": 16, "dtype": "float16"}):
        values = drawn(kind, **more)
        with registry.using(mla_decode=name):
            check(registry.call(OP.name, *values), values)


@pytest.mark.parametrize("name", NAMES[:3])
def test_a_captured_graph_follows_lengths_and_pages(name: str) -> None:
    values = drawn()
    lengths, table = values[2], values[5]
    with registry.using(mla_decode=name):
        registry.call(OP.name, *values)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = registry.call(OP.name, *values)
    for new in ([2048, 1, 0, 777], [5, 64, 65, 2047], [0, 0, 0, 0]):
        lengths.copy_(torch.tensor(new))
        table.copy_(table.roll(1, 0))
        graph.replay()
        check(found, values)


@pytest.mark.parametrize("name", NAMES[1:3])
def test_results_are_the_same_bits_each_time(name: str) -> None:
    values = drawn(batch=1, kv_len=32768, lengths="full")
    with registry.using(mla_decode=name):
        first = registry.call(OP.name, *values)
        for _ in range(5):
            again = registry.call(OP.name, *values)
            assert all(same_bits(one, other) for one, other in zip(again, first, strict=True))


@pytest.mark.parametrize("name", NAMES[1:3])
def test_other_sizes_run_what_is_loaded(name: str) -> None:
    with registry.using(mla_decode=name):
        for batch, kv_len in ((1, 192), (2, 2048), (7, 4096), (130, 256)):
            values = drawn(batch=batch, kv_len=kv_len)
            check(registry.call(OP.name, *values), values)


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
        with registry.using(mla_decode=name):
            check(registry.call(OP.name, q, cache, lengths, 512, 0.07, table), small)
