"""Accuracy of every format of a linear layer against float64, outliers among the activations."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import registry
from benchmarks.formats.accuracy import Accuracy, main, measured, report
from benchmarks.formats.cases import FORMATS, KINDS, activations, whole
from registry import Device

CPU = Device.of("cpu")
SIZES = 4, 32, 256
BASELINE = "torch.native"
MOST = {"int1": 0.8, "int2": 0.6, "2:4": 0.5, "int8": 0.08, "W8A8": 0.08, "float": 0.01, "bfloat16": 0.01}
"""What a format may cost, by the beginning of its name: 4 bits a sixth, measured at 0.07 to 0.13."""


@pytest.mark.parametrize("alone", [True, pytest.param(False, marks=pytest.mark.thorough)], ids=["torch", "all"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("title", FORMATS)
@pytest.mark.few(14)
def test_implementations_add_a_rounding_and_the_format_costs_what_its_bits_do(
    title: str, kind: str, alone: bool
) -> None:
    left_out = all_but_the_baseline() if alone else {"torch.compile"}
    found = list(measured(title, FORMATS[title], kind, SIZES, CPU, left_out))
    assert found
    for each in found:
        assert each.holds, each
        assert each.largest < 16 * max(each.unit, each.arithmetic)
    most = next((most for start, most in MOST.items() if title.startswith(start)), 0.17)
    if title != "float32":
        assert 0 < found[0].format_error < most


@functools.cache
def all_but_the_baseline() -> frozenset[str]:
    """Names of implementations. Asked for by tests, since each process of a run collects them."""
    return frozenset(one.name for op in registry.ops() for one in registry.implementations(op)) - {BASELINE}


def test_an_implementation_that_adds_more_does_not_hold() -> None:
    (right, *_) = measured("bfloat16", whole(torch.bfloat16), "normal", SIZES, CPU, all_but_the_baseline())
    assert right.holds
    assert not replace(right, arithmetic=3 * right.unit).holds


def test_outliers_are_columns_of_the_activations() -> None:
    x = activations(8, 512, "outliers", torch.Generator().manual_seed(0))
    large = x.abs().mean(0) > 20
    assert large.sum() == 4


def test_a_row_names_the_least_accurate_implementation() -> None:
    one = Accuracy("int8", "normal", "gemm_int8", "a.one", 1e-3, 4e-3, 0.01, 2.0**-9, 256)
    other = replace(one, implementation="b.two", arithmetic=2e-3)
    assert "| int8 | normal | gemm_int8 | 1.00e-02 | 2.00e-03 b.two (of 2) | 4.00e-03 | 1.02 |" in report([one, other])


def test_results_are_written(tmp_path: Path) -> None:
    arguments = ["--device", "cpu", "--sizes", "2", "16", "128", "--format", "nf4 g64"]
    arguments += [text for name in all_but_the_baseline() for text in ("--without", name)]
    assert main([*arguments, "--write", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "format_accuracy.json").read_text())
    assert {row["inputs"] for row in rows} == set(KINDS)
    assert "nf4 g64" in (tmp_path / "format_accuracy.md").read_text()
