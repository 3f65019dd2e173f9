"""cuda.wgmma's gradients: their kernels' very texts on a CPU, copies and products as early, and as late, as can be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from registry.contracts import ATTENTION, ATTENTION_BACKWARD, ATTENTION_VARLEN_BACKWARD
from registry.correctness import numerics
from registry.problem import Problem, Value

from ..tiers import THOROUGH
from .attention_on_cpu import Late
from .gradients_on_cpu import CONTRACTS, PACKED, SMALL, built, config_of, of_others_not_finite, second_is_right

FORMS: list[tuple[Mapping[str, Value], Mapping[str, Value]]] = [
    ({}, {}),
    ({"causal": False, "q_len": 100, "kv_len": 333, "batch": 1, "dtype": "float16"}, {"queries": 112, "keys": 144}),
    ({"kv_heads": 1, "head_dim": 128}, {"query_warpgroups": 3}),
    ({"q_len": 70, "kv_len": 400, "kv_heads": 4}, {"key_warpgroups": 3, "query_warpgroups": 1}),
    ({"q_len": 300, "kv_len": 90}, {"key_warpgroups": 1}),
    ({"span": 50, "head_dim": 96, "q_len": 230, "kv_len": 230}, {"queries": 32}),
    ({"span": 70, "causal": False, "kv_len": 260}, {"key_warpgroups": 3, "query_warpgroups": 3}),
    ({"span": 40, "q_len": 90, "kv_len": 300, "dtype": "float16"}, {}),
    ({"q_len": 1, "kv_len": 65, "head_dim": 24}, {"key_warpgroups": 1, "query_warpgroups": 1}),
    ({"q_len": 130, "kv_len": 130, "head_dim": 8}, {}),
    ({"q_len": 300, "kv_len": 300, "head_dim": 128, "batch": 1}, {"queries": 64, "keys": 96}),
    ({"softcap": True, "span": 64}, {}),
    (
        {"softcap": True, "causal": False, "kv_len": 77, "dtype": "float16", "head_dim": 128, "batch": 1},
        {"query_warpgroups": 3},
    ),
    ({"head_dim": 256, "q_len": 100, "kv_len": 150, "batch": 1}, {}),
    ({"head_dim": 184, "kv_heads": 4, "softcap": True, "span": 60, "batch": 1}, {}),
]
PACKED_FORMS: list[tuple[Mapping[str, Value], Mapping[str, Value]]] = [
    ({}, {}),
    ({"total_q": 200, "total_k": 500, "lengths": "uniform"}, {"key_warpgroups": 3, "query_warpgroups": 1}),
    ({"causal": False, "total_q": 150, "total_k": 233, "dtype": "float16"}, {"queries": 112, "keys": 112}),
    ({"kv_heads": 1, "head_dim": 128, "sequences": 3}, {"query_warpgroups": 3}),
    ({"span": 40, "softcap": True}, {}),
    ({"span": 30, "causal": False, "sequences": 2}, {"key_warpgroups": 1}),
    ({"sequences": 40, "total_q": 200, "total_k": 260, "head_dim": 24}, {"key_warpgroups": 1, "query_warpgroups": 1}),
    ({"head_dim": 128, "sequences": 2, "total_q": 100, "total_k": 150, "dtype": "float16"}, {"queries": 64}),
    ({"sequences": 1, "total_q": 1, "total_k": 65}, {}),
    # more tiles than are put in order
    ({"sequences": 200, "heads": 2, "kv_heads": 1, "total_q": 210, "total_k": 230, "head_dim": 8}, {}),
    ({"head_dim": 256, "sequences": 2, "total_q": 100, "total_k": 130}, {}),
]


def check(problem: Problem, wanted: Mapping[str, Value], folder: Path, kinds: tuple[str, ...]) -> None:
    """The gradients of inputs of some kinds, of the first one with copies and products early and late."""
    contract, differentiate = CONTRACTS[problem.op], built(problem, config_of(problem, wanted), folder)
    for kind in kinds:
        values = contract.draw(problem, kind, torch.Generator().manual_seed(1))
        for late in Late if kind == kinds[0] else (Late.NONE,):
            verdict = numerics.judged(contract, problem, differentiate(*values, late=late), values)
            assert verdict.ok, f"{kind}, late: {late.name}: {verdict.message}"


@pytest.mark.parametrize(("more", "wanted"), FORMS, ids=str)
@THOROUGH
def test_numerics(more: Mapping[str, Value], wanted: Mapping[str, Value], tmp_path: Path) -> None:
    check(ATTENTION_BACKWARD.problem_of({**SMALL, **more}), wanted, tmp_path, ("normal", "edges", "outliers"))


@pytest.mark.parametrize(("more", "wanted"), PACKED_FORMS, ids=str)
@pytest.mark.few(1)
def test_numerics_of_packed_sequences(more: Mapping[str, Value], wanted: Mapping[str, Value], tmp_path: Path) -> None:
    problem = ATTENTION_VARLEN_BACKWARD.problem_of({**PACKED, **more})
    check(problem, wanted, tmp_path, ("normal", "edges", "outliers", "empty", "beside"))


@THOROUGH
def test_parts_of_a_projection_are_read_where_they_lie(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = torch.randn(1, 90, 8, 64, generator=generator).bfloat16().split([4, 2, 2], 2)
    grad_out = torch.randn(1, 4, 90, 64, generator=generator).bfloat16().transpose(1, 2)
    out, lse = ATTENTION.reference(q, k, v, None, True, 0.3)
    out = out.transpose(1, 2).contiguous().transpose(1, 2)
    values = ATTENTION_BACKWARD.bind((grad_out, q, k, v, None, out, lse), {"causal": True, "scale": 0.3})
    problem = ATTENTION_BACKWARD.pose(ATTENTION_BACKWARD.arguments(values))
    found = built(problem, config_of(problem, {}), tmp_path)(*values)
    verdict = numerics.judged(ATTENTION_BACKWARD, problem, found, values)
    assert verdict.ok, verdict.message


@pytest.mark.parametrize(
    "needs", [(True, False, False), (False, True, False), (False, False, True), (False, True, True)]
)
@THOROUGH
def test_gradients_that_are_not_needed_are_not_made(needs: tuple[bool, bool, bool], tmp_path: Path) -> None:
    drawn = ATTENTION_BACKWARD.draw(ATTENTION_BACKWARD.problem_of(SMALL), "normal", torch.Generator().manual_seed(1))
    values = (*drawn[:-3], *needs)
    problem = ATTENTION_BACKWARD.pose(ATTENTION_BACKWARD.arguments(values))
    found = built(problem, config_of(problem, {}), tmp_path)(*values)
    assert [bool(each.numel()) for each in found] == list(needs)
    verdict = numerics.judged(ATTENTION_BACKWARD, problem, found, values)
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("late", Late)
@THOROUGH
def test_what_is_not_finite_in_other_sequences_does_not_reach_one(late: Late, tmp_path: Path) -> None:
    problem, values = of_others_not_finite()
    assert second_is_right(built(problem, config_of(problem, {}), tmp_path), values, late)


WILD = torch.tensor([-9, 2**30, 5, 0, 2**31 - 1, 3, 250, -(2**31)], dtype=torch.int32)
FALLING = torch.tensor([250, 240, 230, 200, 199, 90, 80, 0], dtype=torch.int32)


@pytest.mark.parametrize("late", Late)
@THOROUGH
def test_wrong_offsets_stay_within_the_tensors(late: Late, tmp_path: Path) -> None:
    problem = ATTENTION_VARLEN_BACKWARD.problem_of({**PACKED, "sequences": 7})
    values = ATTENTION_VARLEN_BACKWARD.draw(problem, "normal", torch.Generator().manual_seed(1))
    differentiate = built(problem, config_of(problem, {}), tmp_path)
    for queries, keys in ((WILD, WILD), (WILD, FALLING), (FALLING, WILD), (WILD.flip(0), values[5])):
        differentiate(*values[:4], queries, keys, *values[6:], late=late)
