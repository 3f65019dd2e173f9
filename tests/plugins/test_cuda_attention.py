"""cuda.wgmma for attention: reasons, spaces and defaults, variants, tensor maps, kernels compiled without spills."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch

from registry.contracts import ATTENTION
from registry.device import Device
from registry.problem import Problem, Value
from registry_cuda.attention.head_tiles import head_tiles

from ..tiers import spread
from .wgmma_attention import A100, FORWARD, H200, of_each_tile, variant_of

pytest.importorskip("cuda.core")

LONG: Mapping[str, Value] = {
    "batch": 1, "heads": 32, "kv_heads": 8, "q_len": 8192, "kv_len": 8192, "head_dim": 128, "causal": True,
    "mask": "none", "softcap": False, "span": False, "dtype": "bfloat16",
}  # fmt: skip


def problem_of(**more: Value) -> Problem:
    return ATTENTION.problem_of({**LONG, **more})


def posed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **more: object) -> Problem:
    return ATTENTION.pose(ATTENTION.arguments(ATTENTION.bind((q, k, v), {"causal": True, **more})))


def heads(length: int, count: int, dim: int = 128, batch: int = 2) -> torch.Tensor:
    return torch.empty(batch, length, count, dim, dtype=torch.bfloat16, device="meta")


def reasons(problem: Problem, device: Device = H200) -> list[str]:
    return list(FORWARD.unsupported(problem, device))


def test_every_reason_is_given() -> None:
    assert reasons(problem_of()) == []
    assert [reason.split()[0] for reason in reasons(problem_of(), A100)] == ["wgmma"]
    assert reasons(problem_of(dtype="float32")) == ["dtype is float32, expected bfloat16 or float16"]
    refused = reasons(problem_of(mask="bool", head_dim=264))
    assert refused == ["head_dim=264 is no multiple of 8 up to 256", "it takes no mask"]
    assert "there are no keys" in reasons(posed(heads(64, 4), heads(0, 4), heads(0, 4)))
    assert "head_dim=20 is no multiple of 8 up to 256" in reasons(problem_of(head_dim=20))
    assert "counted in 32 bits" in reasons(problem_of(q_len=2**31, kv_len=2**31))[0]


@pytest.mark.parametrize(("scale", "count"), [(None, 0), (0.5, 0), (0.0, 1), (-1.0, 1)])
def test_a_scale_by_which_products_change_their_order_is_refused(scale: float | None, count: int) -> None:
    found = reasons(posed(heads(64, 4), heads(64, 4), heads(64, 4), scale=scale))
    assert [reason.split("=")[0] for reason in found] == ["scale"] * count


def test_heads_are_read_where_they_lie() -> None:
    q, k, v = torch.empty(2, 300, 12, 128, dtype=torch.float16, device="meta").split([8, 2, 2], 2)
    problem = posed(q, k, v)
    assert reasons(problem) == []
    tiles = head_tiles(problem, "k", 192)
    assert tiles is not None
    assert (tiles.sizes, tiles.tile) == ((128, 300, 2, 2), (64, 192, 1, 1))
    assert tiles.strides == (12 * 256, 256, 300 * 12 * 256)
    before = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    tiles = head_tiles(posed(before[0], before[1], before[2]), "q", 128)
    assert tiles is not None
    assert tiles.strides == (256, 300 * 256, 8 * 300 * 256)


def test_layouts_that_the_copy_engine_does_not_take_are_refused() -> None:
    q, k = heads(64, 4), heads(64, 4)
    assert reasons(posed(q, k, k)) == []
    assert "is expanded" in reasons(posed(q, heads(64, 1).expand(-1, -1, 4, -1), k))[0]
    apart = torch.empty(2, 64, 4, 132, dtype=torch.bfloat16, device="meta")[..., :128]
    assert "multiples of 16 bytes" in reasons(posed(q, apart, k))[0]
    turned = torch.empty(2, 64, 128, 4, dtype=torch.bfloat16, device="meta").transpose(2, 3)
    assert "not neighbours" in reasons(posed(q, k, turned))[0]


def test_a_dimension_of_one_has_any_stride() -> None:
    one = torch.empty_strided((1, 64, 1, 128), (7, 128, 3, 1), dtype=torch.bfloat16, device="meta")
    assert reasons(posed(one, one, one)) == []


@pytest.mark.parametrize("head_dim", [8, 64, 72, 128, 192, 256])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (1, 8192), (65, 65), (200, 70), (8192, 8192)])
@pytest.mark.few(12)
def test_spaces_hold_their_default_and_fit_shared_memory(head_dim: int, causal: bool, q_len: int, kv_len: int) -> None:
    problem = problem_of(head_dim=head_dim, causal=causal, q_len=q_len, kv_len=kv_len)
    space = FORWARD.space(problem, H200)
    assert FORWARD.default(problem, H200) in space
    assert (16 if head_dim > 128 else 40) <= len(space) <= 100
    tiles = -(-q_len // 64) * 32
    for config in space:
        launch = FORWARD.launch(problem, config, H200)
        assert launch.shared_bytes <= 227 * 1024
        assert 1 <= math.prod(launch.grid) <= min(132, tiles)
        assert launch.options["block"] == 128 * (config["warpgroups"] + 1)


def test_one_variant_serves_all_sizes_and_scales() -> None:
    config = FORWARD.default(problem_of(), H200)
    sizes = [(1, 300, 700), (2, 8192, 8192), (64, 1, 5)]
    problems = [posed(heads(q, 32, batch=batch), *[heads(kv, 8, batch=batch)] * 2) for batch, q, kv in sizes]
    assert len({variant_of(problem, config).key for problem in problems}) == 1


def test_no_more_heads_run_at_once_than_keys_fit_in_l2() -> None:
    def together(problem: Problem) -> object:
        return FORWARD.launch(problem, FORWARD.default(problem, H200), H200).args[-1]

    assert together(problem_of()) == 32
    assert together(problem_of(kv_heads=32)) == 8
    assert together(problem_of(kv_len=2**20)) == 4


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"head_dim": 64, "causal": False, "dtype": "float16"},
        {"head_dim": 96, "span": 1024, "causal": False},
        {"head_dim": 40, "span": 300},
        {"span": 300, "softcap": True},
        {"head_dim": 192},
        {"head_dim": 256, "softcap": True},
    ],
    ids=str,
)
@pytest.mark.few(1)
def test_kernels_compile_without_spills(more: Mapping[str, Value]) -> None:
    problem = problem_of(**more)
    for config in spread(of_each_tile(problem), 4):
        artifact = FORWARD.compile(variant_of(problem, config), H200.target)
        assert (artifact.resources["spill_bytes"], artifact.resources["stack_bytes"]) == (0, 0), config
        assert artifact.resources["threads"] * artifact.resources["registers"] <= 65_536
