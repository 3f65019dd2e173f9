"""Whoever remembers what it made of integers, and looks at a few of them, is refused: single ones change, too."""

from __future__ import annotations

import pytest

from registry.problem import Problem, Value

from ...tiers import THOROUGH
from .trials import Trials

PROBLEMS: dict[str, dict[str, Value]] = {
    "scaled_mm": {
        "m": 2, "n": 24, "k": 200, "dtype": "int8", "scales": "tensor", "out_dtype": "float32", "bias": False,
    },
    "gemm_w4a16": {
        "m": 2, "n": 40, "k": 128, "group_size": 64, "dtype": "float32", "zeros": "none", "act_order": False,
        "bias": False,
    },
}  # fmt: skip
RIGHT = {"scaled": "scaled_mm", "packed": "gemm_w4a16"}
REFUSED = {"sums": "scaled_mm", "wide": "scaled_mm", "levels": "gemm_w4a16"}
TOLD = ("a sample left a wrong output", "after timing", "on inputs that it has not met before")


@pytest.fixture(scope="module")
def trials() -> Trials:
    return Trials("cheats_with_integers.py")


@pytest.mark.parametrize("name", [pytest.param(name, marks=THOROUGH) if name == "wide" else name for name in REFUSED])
def test_whoever_trusts_that_integers_stay_is_refused(trials: Trials, name: str) -> None:
    op = REFUSED[name]
    found = trials.of(f"integer.{name}", Problem(op, PROBLEMS[op]))
    assert found.status == "wrong_result", found.message
    assert any(words in found.message for words in TOLD), found.message


@pytest.mark.parametrize("name", RIGHT)
def test_whoever_reads_them_in_each_call_is_accepted(trials: Trials, name: str) -> None:
    op = RIGHT[name]
    found = trials.of(f"integer.{name}", Problem(op, PROBLEMS[op]))
    assert found.status == "ok", found.message
