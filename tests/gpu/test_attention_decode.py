"""attention_decode on a GPU: replays with other lengths, views, other sizes, and what is not checked in a capture."""

from __future__ import annotations

from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

import registry
from registry.contracts import ATTENTION_DECODE as OP
from registry.correctness.bits import same_bits
from registry.correctness.numerics import judged
from registry.device import Device
from registry.discovery.answers import refusals
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.plans.plan import Candidate, build
from registry.errors import OutOfRangeError
from registry_cuda.attention_decode import MmaDecode

from .decoding import DecodeCalls

OURS = ("triton.whole", "triton.split_kv", "cuda.mma")
NAMES = ("torch.native", *OURS, "torch.compile")
DIMS: dict[str, Any] = {
    "batch": 4, "heads": 32, "kv_heads": 8, "q_len": 1, "kv_len": 2048, "head_dim": 128, "page": 16, "span": False,
    "kv_dtype": "auto", "softcap": False, "lengths": "uniform", "dtype": "bfloat16",
}  # fmt: skip


CALLS = DecodeCalls(OP, DIMS, lengths=3, table=4)
OF_INT8 = DecodeCalls(OP, {**DIMS, "kv_dtype": "int8"}, lengths=3, table=4)
TAKING_INT8 = ("triton.whole_int8", "triton.split_kv_int8")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["beyond", "nan", "outliers"])
def test_every_kind_of_inputs(name: str, kind: str) -> None:
    CALLS.is_right_at(name, kind, ({}, {"page": False, "q_len": 3}, {"kv_dtype": "float8_e4m3fn", "span": 100}))


@pytest.mark.parametrize("name", NAMES[:4])
def test_a_captured_graph_follows_lengths_and_pages(name: str) -> None:
    CALLS.follows_lengths_and_pages(name)


@pytest.mark.parametrize("name", OURS)
def test_results_are_the_same_bits_each_time(name: str) -> None:
    CALLS.has_the_same_bits_each_time(name, kv_len=65536)


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("power", [-100, -30, 30, 100])
def test_queries_of_any_size_beside_float8(name: str, power: int) -> None:
    # float16 would hold none of them
    q, *rest = CALLS.drawn(kv_dtype="float8_e4m3fn")
    rest[6] = 2.0**-power / 8
    CALLS.is_right(name, q * 2.0**power, *rest)


def test_the_dependent_launch_waits_for_the_parts_of_its_own_call() -> None:
    # one call after another without a pause, on scratch that is used again, with other lengths
    calls = [CALLS.drawn(batch=8, kv_len=4096, lengths=lengths) for lengths in ("full", "skewed", "uniform")] * 10
    with registry.using(attention_decode="triton.split_kv"):
        found = [registry.call(OP.name, *values) for values in calls]
        for values, results in zip(calls[:3], found[-3:], strict=True):
            CALLS.check(results, values)
        for first, last in zip(found[:3], found[-3:], strict=True):
            assert all(same_bits(one, other) for one, other in zip(first, last, strict=True))


@pytest.mark.parametrize("name", OURS)
def test_parts_of_a_fused_tensor_and_heads_before_slots(name: str) -> None:
    fused = torch.randn(4, 1, 48 * 128, device="cuda", dtype=torch.bfloat16)
    q = fused[..., : 32 * 128].unflatten(-1, (32, 128))
    caches = [torch.randn(4, 8, 500, 128, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(2)]
    values = (q, *caches, torch.tensor([500, 3, 129, 64], device="cuda", dtype=torch.int32))
    CALLS.is_right(name, *OP.bind(values, {}))


@pytest.mark.parametrize("name", OURS)
def test_other_sizes_run_what_is_loaded(name: str) -> None:
    sizes = ((1, 160), (2, 2048), (7, 4096), (130, 256), (3, 16_000))
    CALLS.is_right_at(name, "normal", ({"batch": batch, "kv_len": kv_len} for batch, kv_len in sizes))


def test_a_cache_beyond_two_gigabytes() -> None:
    # 2 ** 31 elements and more, of which the last pages are read
    page, heads, width = 64, 8, 128
    blocks = 2**31 // (page * heads * width) + 8
    caches = [torch.empty(blocks, page, heads, width, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    table = torch.arange(blocks - 8, blocks, device="cuda", dtype=torch.int32).view(2, 4)
    for cache in caches:
        cache[blocks - 8 :].normal_()
    q = torch.randn(2, 1, 32, width, device="cuda", dtype=torch.bfloat16)
    lengths = torch.tensor([256, 100], device="cuda", dtype=torch.int32)
    small = [cache[blocks - 8 :].clone() for cache in caches]
    right = OP.bind((q, *small, lengths, table - (blocks - 8)), {})
    for name in OURS:
        CALLS.is_right(name, q, *caches, lengths, table, as_of=right)


FORMS: tuple[dict[str, Any], ...] = (
    {"page": False, "head_dim": 64, "dtype": "float16", "lengths": "skewed"},
    {"page": 4, "softcap": True, "q_len": 3, "kv_len": 512},
    {"page": 48, "kv_len": 960, "span": 70, "q_len": 2},
    {"q_len": 4, "kv_dtype": "float8_e4m3fn", "span": 200},
    {"kv_dtype": "float8_e4m3fn", "dtype": "float16", "heads": 8, "kv_len": 32},
    {"head_dim": 192, "kv_len": 496},
    {"head_dim": 256, "kv_dtype": "float8_e4m3fn", "kv_len": 496},
)


@pytest.mark.parametrize("dims", FORMS, ids=[",".join(map(str, form.values())) for form in FORMS])
@pytest.mark.parametrize("kind", ["normal", "beyond", "last_key", "first_key"])
def test_every_config_of_cuda_mma(dims: dict[str, Any], kind: str) -> None:
    implementation, device = MmaDecode(), Device.of("cuda")
    values = CALLS.drawn(kind, **dims)
    problem = OP.pose(OP.arguments(values))
    assert not list(implementation.unsupported(problem, device))
    for config in implementation.space(problem, device):
        plan = build(OP, Candidate(implementation, config), problem, OP.arguments(values), device)
        assert judged(OP, problem, plan(*values), values).ok, config


def test_one_key_that_is_nan() -> None:
    CALLS.is_right_at(
        "cuda.mma", "nan", ({"page": False, "kv_len": 1, "lengths": "full"}, {"page": False, "kv_len": 17})
    )


def test_infinite_values_show_where_they_are_seen() -> None:
    q, keys, cells, lengths, *rest = CALLS.drawn(page=False, lengths="full", kv_len=1000)
    lengths.fill_(990)
    cells[:, 989, :, 0] = torch.inf
    cells[:, 990:] = torch.nan
    values = (q, keys, cells, lengths, *rest)
    with registry.using(attention_decode="cuda.mma"):
        out, _ = registry.call(OP.name, *values)
    assert (out[..., 0] == torch.inf).all()
    assert out[..., 1:].isfinite().all()


def test_a_scale_that_changes_at_each_call() -> None:
    values = CALLS.drawn()
    for scale in (0.05, 0.2, None):
        CALLS.is_right("cuda.mma", *values[:7], scale, *values[8:])


def test_data_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_CHECK", "1")
    call = Dispatcher(Catalog()).op(OP.name)
    values = CALLS.drawn()
    call(*values)
    values[4][2, 0] = 10**6
    with pytest.raises(OutOfRangeError, match=r"block_table\[2, 0\] is 1000000, expected 0 to"):
        call(*values)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, kind) for name in TAKING_INT8 for kind in OP.kinds),
        *((name, kind) for name in ("torch.native", "torch.compile") for kind in ("beyond", "nan", "outliers")),
    ],
)
def test_int8_with_every_kind_of_inputs(name: str, kind: str) -> None:
    forms: tuple[dict[str, Any], ...] = (
        {}, {"page": False, "q_len": 3, "dtype": "float16"}, {"span": 100, "lengths": "skewed"}, {"dtype": "float32"},
        {"softcap": True, "head_dim": 80, "heads": 8, "kv_heads": 1},
    )  # fmt: skip
    OF_INT8.is_right_at(name, kind, forms)


@pytest.mark.parametrize("name", TAKING_INT8)
def test_captured_graphs_of_int8_follow_lengths_and_pages_and_have_the_same_bits(name: str) -> None:
    OF_INT8.follows_lengths_and_pages(name)
    OF_INT8.has_the_same_bits_each_time(name, kv_len=65536)


@pytest.mark.parametrize("name", [*TAKING_INT8, "torch.native"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_each_level_of_int8_is_read_as_it_is(name: str, dtype: torch.dtype) -> None:
    # all keys are alike, so that the output is the value, and a logit the level that a query of one element points to
    levels = torch.arange(-128, 128, device="cuda").to(torch.int8).expand(1, 128, 1, 256).contiguous()
    lengths = torch.tensor([128], device="cuda", dtype=torch.int32)
    scales = (torch.full((1,), 0.25, device="cuda"), torch.ones(1, device="cuda"))
    for place in (0, 1, 126, 127, 128, 129, 254, 255):
        q = torch.zeros(1, 1, 2, 256, device="cuda", dtype=dtype)
        q[..., place] = 1.0
        with registry.using(attention_decode=name):
            out, lse = registry.call(OP.name, q, levels, levels, lengths, None, *scales, scale=1.0)
        torch.testing.assert_close(out, levels[:, :1].expand(1, 1, 2, 256).to(dtype), rtol=1e-5, atol=1e-4)
        right = torch.full((1, 2, 1), 0.25 * (place - 128) + 7 * 0.6931471805599453, device="cuda")
        torch.testing.assert_close(lse, right, rtol=1e-6, atol=2e-5)


@pytest.mark.parametrize("name", TAKING_INT8)
@pytest.mark.parametrize("power", [-100, -30, 30, 100])
def test_queries_of_any_size_beside_int8(name: str, power: int) -> None:
    q, *rest = OF_INT8.drawn()
    rest[6] = 2.0**-power / 8
    OF_INT8.is_right(name, q * 2.0**power, *rest)


@pytest.mark.parametrize("name", TAKING_INT8)
def test_int8_in_other_sizes_and_orders(name: str) -> None:
    sizes = ((1, 160), (2, 2048), (7, 4096), (130, 256), (3, 16_000))
    OF_INT8.is_right_at(name, "normal", ({"batch": batch, "kv_len": kv_len} for batch, kv_len in sizes))
    fused = torch.randn(4, 1, 48 * 128, device="cuda", dtype=torch.bfloat16)
    shape, device = (4, 8, 500, 128), torch.device("cuda")
    caches = [torch.randint(-128, 128, shape, device=device, dtype=torch.int8).transpose(1, 2) for _ in range(2)]
    lengths = torch.tensor([500, 3, 129, 64], device=device, dtype=torch.int32)
    scales = [torch.full((1,), scale, device=device) for scale in (0.01, 0.02)]
    OF_INT8.is_right(
        name, *OP.bind((fused[..., : 32 * 128].unflatten(-1, (32, 128)), *caches, lengths, None, *scales), {})
    )


@pytest.mark.parametrize("name", TAKING_INT8)
@pytest.mark.parametrize(
    "dims",
    [
        {"page": False, "head_dim": 64, "dtype": "float16", "lengths": "skewed"},
        {"page": 4, "softcap": True, "q_len": 3, "kv_len": 512},
        {"page": 48, "kv_len": 960, "span": 70, "q_len": 16},
        {"head_dim": 256, "kv_len": 496},
    ],
    ids=str,
)
def test_configs_of_int8(name: str, dims: dict[str, Any]) -> None:
    implementation, device = Catalog().implementation(OP.name, name), Device.of("cuda")
    values = OF_INT8.drawn("outliers", **dims)
    problem = OP.pose(OP.arguments(values))
    assert not refusals(implementation, problem, device)
    # every third: each takes a second to compile
    for config in implementation.space(problem, device).configs[::3]:
        plan = build(OP, Candidate(implementation, config), problem, OP.arguments(values), device)
        assert judged(OP, problem, plan(*values), values).ok, config


def test_an_int8_cache_beyond_two_gigabytes() -> None:
    page, heads, width = 64, 8, 128
    blocks = 2**31 // (page * heads * width) + 8
    caches = [torch.zeros(blocks, page, heads, width, device="cuda", dtype=torch.int8) for _ in range(2)]
    table = torch.arange(blocks - 8, blocks, device="cuda", dtype=torch.int32).view(2, 4)
    for cache in caches:
        cache[blocks - 8 :].random_(-128, 128)
    q = torch.randn(2, 1, 32, width, device="cuda", dtype=torch.bfloat16)
    lengths = torch.tensor([256, 100], device="cuda", dtype=torch.int32)
    scales = [torch.full((1,), scale, device="cuda") for scale in (0.01, 0.02)]
    small = [cache[blocks - 8 :].clone() for cache in caches]
    right = OP.bind((q, *small, lengths, table - (blocks - 8), *scales), {})
    for name in TAKING_INT8:
        OF_INT8.is_right(name, q, *caches, lengths, table, *scales, as_of=right)


def test_an_untuned_call_with_int8_runs_what_takes_it() -> None:
    values = OF_INT8.drawn()
    dispatcher = Dispatcher(Catalog())
    OF_INT8.check(dispatcher.call(OP.name, *values), values)
    assert dispatcher.explain(OP.name, *values).implementation in TAKING_INT8
