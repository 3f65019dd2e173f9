"""cuda.staged on a GPU: every configuration, kinds of inputs, parts that differ in length, capture."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import registry
from registry.device import Device
from registry.dispatch.plans.plan import Candidate, Plan, build
from registry.problem import Problem, Value
from registry.testing import check_implementation
from registry_cuda.staged import StagedRows, StagedSoftmax, StagedSoftmaxBackward

from .replaying import check_replay

if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] < 9:
    pytest.skip("needs a GPU with a copy engine for shared memory", allow_module_level=True)
pytest.importorskip("cuda.core")

BOTH = pytest.mark.parametrize("implementation", [StagedSoftmax(), StagedSoftmaxBackward()], ids=lambda one: one.op)
DIMS: list[dict[str, Value]] = [
    {"rows": 3, "cols": 8192, "dtype": "bfloat16"},
    {"rows": 70, "cols": 50_264, "dtype": "float16"},
    {"rows": 67, "cols": 32_004, "dtype": "float32"},
    {"rows": 65, "cols": 151_936, "dtype": "bfloat16"},
]


def problem_and_inputs(
    implementation: StagedRows, dims: dict[str, Value], kind: str
) -> tuple[Problem, tuple[Any, ...]]:
    problem = Problem(implementation.op, dims)
    return problem, registry.ops()[implementation.op].inputs(problem, kind, torch.Generator("cuda").manual_seed(1))


def plan_of(implementation: StagedRows, problem: Problem, values: tuple[Any, ...], config: Any = None) -> Plan:
    op, device = registry.ops()[implementation.op], Device.of("cuda")
    chosen = config or implementation.default(problem, device)
    return build(op, Candidate(implementation, chosen), problem, op.arguments(values), device)


@BOTH
@pytest.mark.parametrize("dims", DIMS, ids=lambda dims: f"{dims['rows']}x{dims['cols']}")
def test_dtypes_and_kinds_of_inputs_are_right(implementation: StagedRows, dims: dict[str, Value]) -> None:
    check_implementation(implementation, registry.ops()[implementation.op], problems=[dims])


@BOTH
@pytest.mark.parametrize("dims", DIMS, ids=lambda dims: f"{dims['rows']}x{dims['cols']}")
def test_every_config_is_right(implementation: StagedRows, dims: dict[str, Value]) -> None:
    problem, values = problem_and_inputs(implementation, dims, "normal")
    op = registry.ops()[implementation.op]
    expected = op.reference(*(value.double() if isinstance(value, torch.Tensor) else value for value in values))
    assert isinstance(expected, torch.Tensor)
    close = 2**-7 if dims["dtype"] == "bfloat16" else 2**-10
    for config in implementation.space(problem, Device.of("cuda")):
        found = plan_of(implementation, problem, values, config)(*values)
        assert isinstance(found, torch.Tensor)
        assert bool(((found.double() - expected).abs() <= close * expected.abs() + 1e-6).all()), config


def test_rows_of_infinities_and_nan_are_those_of_torch() -> None:
    _, (x, dim) = problem_and_inputs(StagedSoftmax(), DIMS[0], "normal")
    x = x.expand(-1, -1).clone()
    x[0] = -torch.inf
    x[1, 77] = torch.inf
    x[2, -1] = torch.nan
    y = plan_of(StagedSoftmax(), Problem("softmax", DIMS[0]), (x, dim))(x, dim)
    torch.testing.assert_close(y, torch.softmax(x, -1), equal_nan=True, atol=1e-6, rtol=2**-7)


@BOTH
def test_a_captured_call_reads_what_its_inputs_become(implementation: StagedRows) -> None:
    problem, values = problem_and_inputs(implementation, DIMS[1], "normal")
    check_replay(plan_of(implementation, problem, values), values)
