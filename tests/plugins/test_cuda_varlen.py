"""cuda.wgmma for packed attention: reasons, spaces and defaults, variants, layouts, kernels compiled without spills."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch

from registry.contracts import ATTENTION_VARLEN
from registry.problem import Problem, Value
from registry_cuda.attention.head_tiles import packed_head_tiles

from ..tiers import THOROUGH, spread
from .wgmma_attention import A100, H200, PACKED, of_each_tile, variant_of

pytest.importorskip("cuda.core")

LONG: Mapping[str, Value] = {
    "sequences": 8, "heads": 32, "kv_heads": 8, "total_q": 8192, "total_k": 8192, "head_dim": 128, "causal": True,
    "softcap": False, "span": False, "lengths": "uniform", "dtype": "bfloat16",
}  # fmt: skip


def problem_of(**more: Value) -> Problem:
    return ATTENTION_VARLEN.problem_of({**LONG, **more})


def packed(tokens: int, count: int, dim: int = 128) -> torch.Tensor:
    return torch.empty(tokens, count, dim, dtype=torch.bfloat16, device="meta")


def posed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sequences: int = 3, step: int = 1) -> Problem:
    offsets = torch.empty((sequences + 1) * step, dtype=torch.int32, device="meta")[::step]
    values = ATTENTION_VARLEN.bind((q, k, v, offsets, offsets), {"causal": True})
    return ATTENTION_VARLEN.pose(ATTENTION_VARLEN.arguments(values))


def reasons(problem: Problem) -> list[str]:
    return list(PACKED.unsupported(problem, H200))


def test_every_reason_is_given() -> None:
    assert reasons(problem_of()) == reasons(problem_of(softcap=True, span=64, head_dim=256)) == []
    assert [reason.split()[0] for reason in PACKED.unsupported(problem_of(), A100)] == ["wgmma"]
    assert reasons(problem_of(dtype="float32")) == ["dtype is float32, expected bfloat16 or float16"]
    assert reasons(problem_of(head_dim=20))[0] == "head_dim=20 is no multiple of 8 up to 256"
    assert "there is no query or no key" in reasons(posed(packed(64, 4), packed(0, 4), packed(0, 4)))
    assert reasons(posed(packed(64, 4), packed(64, 4), packed(64, 4), step=2)) == [
        "cu_seqlens_q is not contiguous",
        "cu_seqlens_k is not contiguous",
    ]
    turned = torch.empty(64, 128, 4, dtype=torch.bfloat16, device="meta").transpose(1, 2)
    assert "not neighbours" in reasons(posed(packed(64, 4), packed(64, 4), turned))[0]


def test_heads_of_a_fused_projection_are_read_where_they_lie() -> None:
    q, k, v = packed(300, 12).split([8, 2, 2], 1)
    problem = posed(q, k, v)
    assert reasons(problem) == []
    tiles = packed_head_tiles(problem, "k", 96)
    assert tiles is not None
    assert (tiles.sizes, tiles.strides, tiles.tile) == ((128, 300, 2, 1), (12 * 256, 256, 16), (64, 96, 1, 1))


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(("sequences", "total_q", "total_k"), [(1, 1, 1), (64, 64, 8192), (8, 8192, 8192), (9, 5, 300)])
@pytest.mark.few(6)
def test_spaces_hold_their_default_and_leave_each_sequence_its_tiles(
    head_dim: int, sequences: int, total_q: int, total_k: int
) -> None:
    problem = problem_of(head_dim=head_dim, sequences=sequences, total_q=total_q, total_k=total_k)
    space = PACKED.space(problem, H200)
    assert PACKED.default(problem, H200) in space
    for config in space:
        launch = PACKED.launch(problem, config, H200)
        shares = total_q // (config["warpgroups"] * 64) + sequences
        assert launch.args[-2] == shares
        assert math.prod(launch.grid) == min(132, 32 * shares)


def test_one_variant_serves_all_lengths() -> None:
    config = PACKED.default(problem_of(), H200)
    problems = [problem_of(sequences=count, total_q=tokens) for count, tokens in ((1, 64), (8, 8192), (300, 301))]
    assert len({variant_of(problem, config).key for problem in problems}) == 1


@pytest.mark.parametrize(
    "more", [{}, {"head_dim": 64, "causal": False}, {"span": 300, "softcap": True}, {"head_dim": 256}], ids=str
)
@THOROUGH
def test_kernels_compile_without_spills(more: Mapping[str, Value]) -> None:
    problem = problem_of(**more)
    for config in spread(of_each_tile(problem), 3):
        resources = PACKED.compile(variant_of(problem, config), H200.target).resources
        assert (resources["spill_bytes"], resources["stack_bytes"]) == (0, 0), config
