"""An op whose tolerance accepts what nobody computed is refused when it is registered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.contract import Op, Tolerance
from registry.contract_check import blind_spots, refuse_blind, refuse_unseen
from registry.contracts import BOX, GEMM_INT4, RMS_NORM, SOFTMAX, SQUARE
from registry.discovery import Catalog
from registry.errors import CheckError, InvalidDefinitionError
from registry.problem import Problem, Value
from registry.testing import check_op

CPU = torch.device("cpu")
UNSEEN: Mapping[str, Value] = {"n": 12_345, "dtype": "float32"}
"""Dimensions that are none of square's examples."""


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache folder."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("KERNEL_REGISTRY_CACHE", str(folder))
    return folder


def with_tolerance(op: Op, rtol: float, atol: float) -> Op:
    """The op under another name, with the same tolerance in every dtype."""
    name = f"acme::{op.name}"
    tolerance = Tolerance(
        dict.fromkeys(op.tolerance.rtol, rtol), dict.fromkeys(op.tolerance.atol, atol), op.tolerance.scale
    )
    return replace(op, name=name, schema=op.schema.replace(op.name, name, 1), tolerance=tolerance)


def examples(op: Op) -> list[Problem]:
    return [op.problem_of(dims) for dims in op.examples]


@pytest.mark.parametrize("op", BOX, ids=lambda op: op.name)
def test_the_ops_in_the_box_tell_right_from_nothing(op: Op) -> None:
    assert blind_spots(op, examples(op)) == []


@pytest.mark.parametrize("op", [SQUARE, SOFTMAX, RMS_NORM, GEMM_INT4], ids=lambda op: op.name)
@pytest.mark.parametrize(("rtol", "atol"), [(1.0, 0.0), (0.0, 1e30)])
def test_a_tolerance_that_accepts_zeros_is_refused(op: Op, rtol: float, atol: float) -> None:
    with pytest.raises(InvalidDefinitionError, match="accepts an all-zero output as y") as raised:
        Catalog(entry_points=()).define(with_tolerance(op, rtol, atol))
    assert all(dtype in str(raised.value) for dtype in op.tolerance.rtol if dtype != "float32" or op is not GEMM_INT4)


def constant_inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    return (torch.full((problem.n,), 3.0, dtype=problem.torch_dtype),)


def test_inputs_that_make_every_output_the_same_are_refused() -> None:
    op = replace(with_tolerance(SQUARE, 1e-6, 0.0), inputs=constant_inputs, kinds=("normal",))
    with pytest.raises(InvalidDefinitionError, match="accepts an all-constant output") as raised:
        refuse_blind(op)
    assert "the output of a previous call" in str(raised.value)


def test_a_tolerance_that_accepts_the_output_of_a_previous_call_is_refused() -> None:
    def near_three(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
        ramp = torch.arange(problem.n, dtype=torch.float64)
        noise = torch.randn(problem.n, generator=generator, dtype=torch.float64)
        return ((ramp + 1e-3 * noise).to(problem.torch_dtype),)

    op = replace(with_tolerance(SQUARE, 0.0, 10.0), inputs=near_three, kinds=("normal",))
    (spot,) = blind_spots(op, [op.problem_of({"n": 1000, "dtype": "float32"})])
    assert "the output of a previous call" in spot


def test_one_dtype_that_is_blind_is_enough() -> None:
    rtol: Mapping[str, float] = {**SQUARE.tolerance.rtol, "bfloat16": 2.0}
    op = replace(SQUARE, tolerance=replace(SQUARE.tolerance, rtol=rtol))
    assert blind_spots(op, examples(op)) == [
        "its tolerance accepts an all-zero output as y (bfloat16) on every kind of inputs "
        "(normal, outliers, spike_last, constant, special)"
    ]


def test_an_op_of_a_plugin_is_refused_and_the_plugin_told(tmp_path: Path) -> None:
    file = tmp_path / "blind.py"
    file.write_text(
        "from dataclasses import replace\n"
        "import registry\n"
        "from registry.contracts import SQUARE\n"
        "TOLERANCE = replace(SQUARE.tolerance, atol=dict.fromkeys(SQUARE.tolerance.atol, 1e30))\n"
        "@registry.defines\n"
        "def ops():\n"
        "    schema = 'acme::blind(Tensor x) -> Tensor y'\n"
        "    return [replace(SQUARE, name='acme::blind', schema=schema, tolerance=TOLERANCE)]\n"
    )
    with pytest.raises(Exception, match="its tolerance accepts an all-zero output"):
        Catalog(entry_points=()).load_file(file)


def test_what_was_found_right_is_not_looked_at_again(own_cache: Path) -> None:
    looked: list[Problem] = []

    def counted(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
        looked.append(problem)
        return SQUARE.inputs(problem, kind, generator)

    op = replace(SQUARE, name="acme::square", schema="acme::square(Tensor x) -> Tensor y", inputs=counted)
    assert refuse_blind(op)
    first = len(looked)
    assert refuse_blind(op)
    refuse_unseen(op, op.problem_of(UNSEEN), CPU)
    assert len(looked) == first > 0
    assert refuse_blind(replace(op, tolerance=replace(op.tolerance, rtol={**op.tolerance.rtol, "float32": 1e-6})))
    assert len(looked) > first


def fails(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    raise RuntimeError("no inputs today")


def fails_on_examples(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    if problem.n != UNSEEN["n"]:
        raise RuntimeError("no inputs today")
    return SQUARE.inputs(problem, kind, generator)


def test_an_op_that_fails_on_its_own_examples_is_left_to_check_op() -> None:
    op = replace(with_tolerance(SQUARE, 1e-3, 0.0), inputs=fails)
    assert blind_spots(op, examples(op)) == []
    Catalog(entry_points=()).define(op)
    with pytest.raises(CheckError, match="no inputs today"):
        check_op(op)


def test_what_could_not_be_looked_at_is_not_noted_as_right(own_cache: Path) -> None:
    op = replace(with_tolerance(SQUARE, 1e-3, 0.0), inputs=fails)
    assert not refuse_blind(op)
    assert not [path for path in own_cache.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "changes", [{"inputs": fails_on_examples}, {"examples": ()}, {"examples": ({"nonsense": 1},)}], ids=lambda it: [*it]
)
def test_an_op_whose_examples_showed_nothing_is_looked_at_on_the_first_problem(changes: Mapping[str, Any]) -> None:
    right, blind = (replace(with_tolerance(SQUARE, rtol, 0.0), **changes) for rtol in (1e-3, 1.0))
    for op in (right, blind):
        Catalog(entry_points=()).define(op)
    refuse_unseen(right, right.problem_of(UNSEEN), CPU)
    with pytest.raises(InvalidDefinitionError, match="accepts an all-zero output as y"):
        refuse_unseen(blind, blind.problem_of(UNSEEN), CPU)


def test_one_example_that_shows_something_suffices() -> None:
    op = replace(with_tolerance(SQUARE, 1e-3, 0.0), inputs=fails_on_examples)
    op = replace(op, examples=(*op.examples, UNSEEN))
    assert refuse_blind(op)
    # it would raise if it looked: other problems have no inputs
    refuse_unseen(op, op.problem_of({"n": 5, "dtype": "float32"}), CPU)
