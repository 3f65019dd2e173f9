"""cuda.wgmma's gradients: their kernels' very texts on a CPU, copies and products as early, and as late, as can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.contracts import ATTENTION_BACKWARD, ATTENTION_VARLEN_BACKWARD
from registry.correctness import numerics
from registry.problem import Problem, Value

from .attention_on_cpu import Attend, Change
from .gradients_on_cpu import CONTRACTS, built, config_of

SMALL: Mapping[str, Value] = {
    "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 150, "kv_len": 150, "head_dim": 64, "causal": True, "mask": "none",
    "softcap": False, "span": False, "dtype": "bfloat16",
}  # fmt: skip
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
    ({"softcap": True, "causal": False, "kv_len": 77, "dtype": "float16", "head_dim": 128, "batch": 1}, {"query_warpgroups": 3}),
]
PACKED: Mapping[str, Value] = {
    "sequences": 5, "heads": 4, "kv_heads": 2, "total_q": 350, "total_k": 350, "head_dim": 64, "causal": True,
    "softcap": False, "span": False, "lengths": "skewed", "dtype": "bfloat16",
}  # fmt: skip
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
]


def check(problem: Problem, wanted: Mapping[str, Value], folder: Path, kinds: tuple[str, ...]) -> None:
    """The gradients of inputs of some kinds, early and late."""
    contract, differentiate = CONTRACTS[problem.op], built(problem, config_of(problem, wanted), folder)
    for kind in kinds:
        values = contract.draw(problem, kind, torch.Generator().manual_seed(1))
        for late in (False, True):
            verdict = numerics.judged(contract, problem, differentiate(*values, late=late), values)
            assert verdict.ok, f"{kind}, {'late' if late else 'early'}: {verdict.message}"


@pytest.mark.parametrize(("more", "wanted"), FORMS, ids=str)
@pytest.mark.few(1)
def test_numerics(more: Mapping[str, Value], wanted: Mapping[str, Value], tmp_path: Path) -> None:
    check(ATTENTION_BACKWARD.problem_of({**SMALL, **more}), wanted, tmp_path, ("normal", "edges", "outliers"))


@pytest.mark.parametrize(("more", "wanted"), PACKED_FORMS, ids=str)
@pytest.mark.few(1)
def test_numerics_of_packed_sequences(more: Mapping[str, Value], wanted: Mapping[str, Value], tmp_path: Path) -> None:
    problem = ATTENTION_VARLEN_BACKWARD.problem_of({**PACKED, **more})
    check(problem, wanted, tmp_path, ("normal", "edges", "outliers", "empty", "beside"))
