"""triton.ragged on a GPU: every configuration, weights, reductions and kinds of targets; rows that end anywhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import registry
from registry.correctness.numerics import judged
from registry.device import Device
from registry.dispatch.plans.plan import Candidate, build
from registry.problem import Value
from registry.testing import check_implementation
from registry_triton.losses.ragged_cross_entropy import RaggedCrossEntropy
from registry_triton.losses.ragged_cross_entropy_backward import RaggedCrossEntropyBackward

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

EACH = pytest.mark.parametrize(
    "implementation", [RaggedCrossEntropy(), RaggedCrossEntropyBackward()], ids=lambda one: one.op
)
SHAPES = [
    {"rows": 77, "cols": 50_257, "reduction": "mean", "weight": False, "dtype": "bfloat16"},
    {"rows": 1, "cols": 1031, "reduction": "none", "weight": True, "dtype": "float16"},
    {"rows": 300, "cols": 2049, "reduction": "sum", "weight": True, "dtype": "float32"},
]


@EACH
@pytest.mark.parametrize("dims", SHAPES, ids=lambda dims: str(dims["cols"]))
def test_dtypes_and_kinds_of_inputs_are_right(implementation: Any, dims: dict[str, Value]) -> None:
    check_implementation(implementation, registry.ops()[implementation.op], problems=[dims])


@EACH
@pytest.mark.parametrize("dims", SHAPES, ids=lambda dims: str(dims["cols"]))
def test_every_config_is_right(implementation: Any, dims: dict[str, Value]) -> None:
    op, device = registry.ops()[implementation.op], Device.of("cuda")
    problem = op.problem_of(dims)
    for place, config in enumerate(implementation.space(problem, device)):
        values = op.inputs(problem, op.kinds[place % len(op.kinds)], torch.Generator("cuda").manual_seed(place))
        plan = build(op, Candidate(implementation, config), problem, op.arguments(values), device)
        found = judged(op, problem, plan(*values), values)
        assert found.ok, (config, found)


def test_the_gradient_writes_nothing_behind_the_last_row() -> None:
    op, implementation, device = (
        registry.ops()["cross_entropy_backward"],
        RaggedCrossEntropyBackward(),
        Device.of("cuda"),
    )
    rows, cols = 5, 50_257
    problem = op.problem_of({**SHAPES[0], "rows": rows})
    values = op.inputs(problem, "normal", torch.Generator("cuda").manual_seed(1))
    gradient = torch.full((rows + 1, cols), 7.0, device="cuda", dtype=torch.bfloat16)
    for config in implementation.space(problem, device):
        plan = build(op, Candidate(implementation, config), problem, op.arguments(values), device)
        plan.into([gradient[:rows]], values)
        assert judged(op, problem, gradient[:rows].clone(), values).ok
        assert (gradient[rows] == 7.0).all()
