"""The benchmark of a layer's experts: its table, published times of their sizes alone, torch's own form."""

from __future__ import annotations

import pytest
import torch

import registry
from benchmarks.racing.fused_moe import MoeTime, main, published, sorted_products, table
from registry.contracts import FUSED_MOE
from registry.problem import Problem


def problem_of(**changes: int | str) -> Problem:
    dims = {"tokens": 64, "hidden": 4096, "intermediate": 7168, "experts": 8, "top_k": 2, "activation": "silu"}
    return FUSED_MOE.problem_of({**dims, "dtype": "bfloat16", "routing": "uniform", **changes})


def test_torchs_own_form_computes_the_op() -> None:
    problem = problem_of(tokens=9, hidden=64, intermediate=32, dtype="float32")
    values = FUSED_MOE.draw(problem, "normal", torch.Generator().manual_seed(0))
    torch.testing.assert_close(sorted_products(*values), registry.call("fused_moe", *values))


def test_published_times_stand_beside_their_own_sizes_alone() -> None:
    assert [one.us for one in published(problem_of())] == [483.0]
    assert published(problem_of(tokens=65)) == published(problem_of(intermediate=14336)) == []


def test_a_contestant_that_cannot_run_is_a_row_with_its_reason() -> None:
    lines = table([MoeTime(1, "registry", 93.21, 0.885), MoeTime(1, "torch", fault="too old")]).splitlines()
    assert lines[2:] == ["| 1 | registry | 93.21 | 0.89 |", "| 1 | torch | too old | - |"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="measures where there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "needs a GPU" in capsys.readouterr().err
