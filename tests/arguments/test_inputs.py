"""Problems are planned from specs of inputs that nobody makes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from registry.arguments.inputs import _of_fakes, arguments_of
from registry.contract import Op
from registry.discovery.catalog import Catalog
from registry.problem import Problem

from .. import fresh

OPS = Catalog().ops()


@pytest.mark.parametrize("name", OPS)
@pytest.mark.few(20)
def test_specs_are_those_of_the_inputs(name: str) -> None:
    op = OPS[name]
    for dims in op.examples[:4]:
        problem = op.problem_of(dims)
        made = op.arguments(op.draw(problem, op.kinds[0], torch.Generator()))
        assert arguments_of(op, problem) == made


def test_dimensions_are_in_the_ops_order_whoever_asked_first() -> None:
    for names in (("dtype", "cols", "rows"), ("rows", "cols", "dtype")):
        dims = {"rows": 77, "cols": 19, "dtype": "float32"}
        assert str(OPS["softmax"].problem_of({name: dims[name] for name in names})) == (
            "softmax(rows=77, cols=19, dtype=float32)"
        )


def test_a_terabyte_is_planned_without_memory_for_it() -> None:
    problem = OPS["square"].problem_of({"n": 2**40, "dtype": "bfloat16"})
    assert arguments_of(OPS["square"], problem).tensor("x").nbytes == 2**41


def with_inputs(inputs: Any) -> tuple[Op, Problem]:
    op = replace(OPS["square"], inputs=inputs)
    return op, op.problem_of({"n": 8, "dtype": "float32"})


def test_inputs_that_are_moved_to_the_generators_device_are_planned_too() -> None:
    def inputs(problem: Problem, _kind: str, generator: torch.Generator) -> tuple[torch.Tensor]:
        return (torch.zeros(problem.n).to(generator.device),)

    op, problem = with_inputs(inputs)
    assert arguments_of(op, problem) == _of_fakes(op, problem)


LIGHT = """
import sys
import torch
from registry.discovery.catalog import Catalog
from registry.arguments.inputs import arguments_of
for op in Catalog().ops().values():
    for dims in op.examples:
        op.new_output_specs(arguments_of(op, op.problem_of(dims)), torch.device("cpu"))
        assert not {"torch._dynamo", "sympy"} & sys.modules.keys(), f"{op.name} {dims}"
"""


@pytest.mark.thorough
def test_planning_imports_nothing_of_torchs_compiler() -> None:
    done = fresh.run("-c", LIGHT, limit_s=120)
    assert done.returncode == 0, done.stderr
