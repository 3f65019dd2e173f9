"""cuda.staged and cuda.async on a GPU: every configuration, kinds of inputs, rows that begin anywhere, capture."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import registry
from registry.backends.cuda import CudaImplementation
from registry.correctness.numerics import judged
from registry.device import Device
from registry.dispatch.plans.plan import Candidate, Plan, build
from registry.problem import Problem
from registry.testing import check_implementation
from registry_cuda.async_rows import AsyncRmsNorm, AsyncSoftmax, AsyncSoftmaxBackward
from registry_cuda.norm_backward import StagedRmsNormBackward

from .replaying import check_replay

if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] < 9:
    pytest.skip("needs a GPU with clusters and a copy engine for shared memory", allow_module_level=True)
pytest.importorskip("cuda.core")

SOFTMAX, NORM, NORM_BACKWARD = AsyncSoftmax(), AsyncRmsNorm(), StagedRmsNormBackward()
LONG = [(3, 8192, "bfloat16"), (70, 50_264, "float16"), (67, 32_004, "float32"), (65, 151_936, "bfloat16")]
# rows that begin anywhere, and end within the tensor's last vector
RAGGED = [(77, 50_257, "bfloat16"), (9, 8203, "float16"), (33, 16_387, "float32")]
# one row for some blocks, several for others; more than any block has on its way
OF_NORMS = [(5, 2048, "bfloat16"), (300, 8200, "float16"), (700, 4100, "float32"), (3000, 16_384, "bfloat16")]
CASES = [
    *((NORM, shape) for shape in LONG),
    *((one, shape) for one in (SOFTMAX, AsyncSoftmaxBackward()) for shape in LONG + RAGGED),
    *((NORM_BACKWARD, shape) for shape in OF_NORMS),
]
EACH = pytest.mark.parametrize(
    ("implementation", "shape"), CASES, ids=[f"{one.name}-{one.op}-{rows}x{cols}" for one, (rows, cols, _) in CASES]
)
Shape = tuple[int, int, str]


def problem_and_inputs(
    implementation: CudaImplementation, shape: Shape, kind: str = "normal"
) -> tuple[Problem, tuple[Any, ...]]:
    problem = registry.ops()[implementation.op].problem_of(dict(zip(("rows", "cols", "dtype"), shape, strict=True)))
    return problem, registry.ops()[implementation.op].inputs(problem, kind, torch.Generator("cuda").manual_seed(1))


def plan_of(implementation: CudaImplementation, problem: Problem, values: tuple[Any, ...], config: Any = None) -> Plan:
    op, device = registry.ops()[implementation.op], Device.of("cuda")
    chosen = config or implementation.default(problem, device)
    return build(op, Candidate(implementation, chosen), problem, op.arguments(values), device)


@EACH
def test_dtypes_and_kinds_of_inputs_are_right(implementation: CudaImplementation, shape: Shape) -> None:
    problem, _ = problem_and_inputs(implementation, shape)
    check_implementation(implementation, registry.ops()[implementation.op], problems=[dict(problem.dims)])


@EACH
def test_every_config_is_right(implementation: CudaImplementation, shape: Shape) -> None:
    problem, values = problem_and_inputs(implementation, shape)
    op = registry.ops()[implementation.op]
    for config in implementation.space(problem, Device.of("cuda")):
        found = judged(op, problem, plan_of(implementation, problem, values, config)(*values), values)
        assert found.ok, (config, found)


@pytest.mark.parametrize("cols", [32_000, 32_003])
def test_rows_of_infinities_and_nan_are_those_of_torch(cols: int) -> None:
    x = torch.randn(6, cols, device="cuda", dtype=torch.bfloat16, generator=torch.Generator("cuda").manual_seed(1))
    x[0] = -torch.inf
    x[1, 77] = torch.inf
    x[2, -1] = torch.nan
    # masked in front for longer than a tile and a block's part, and but for its last element
    x[3, :17_000] = -torch.inf
    x[4, :-1] = -torch.inf
    op = registry.ops()["softmax"]
    problem = op.pose(op.arguments((x, -1)))
    expected = torch.softmax(x, -1)
    for config in SOFTMAX.space(problem, Device.of("cuda")):
        y = plan_of(SOFTMAX, problem, (x, -1), config)(x, -1)
        assert isinstance(y, torch.Tensor)
        assert y.isnan().any(-1).tolist() == [True, True, True, False, False, False]
        torch.testing.assert_close(y, expected, equal_nan=True, atol=1e-6, rtol=2**-7)


def test_a_ragged_row_writes_nothing_of_its_neighbours() -> None:
    rows, cols = 5, 50_257
    x = torch.randn(rows + 2, cols, device="cuda", dtype=torch.bfloat16)
    op, values = registry.ops()["softmax"], (x[:rows], -1)
    problem = op.pose(op.arguments(values))
    for config in SOFTMAX.space(problem, Device.of("cuda")):
        y = torch.full_like(x, 7.0)
        plan_of(SOFTMAX, problem, values, config).into([y[:rows]], values)
        torch.testing.assert_close(y[:rows], torch.softmax(x[:rows], -1), atol=1e-6, rtol=2**-7)
        assert (y[rows:] == 7.0).all()


@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32])
def test_a_weight_in_float32_is_read_as_it_is(weight_dtype: torch.dtype) -> None:
    generator = torch.Generator("cuda").manual_seed(2)
    x = torch.randn(9, 32_768, device="cuda", dtype=torch.bfloat16, generator=generator)
    weight = torch.randn(32_768, device="cuda", generator=generator).to(weight_dtype)
    op, values = registry.ops()["rms_norm"], (x, weight, 1e-6)
    problem = op.pose(op.arguments(values))
    for config in NORM.space(problem, Device.of("cuda")):
        assert judged(op, problem, plan_of(NORM, problem, values, config)(*values), values).ok, config


@pytest.mark.parametrize(("need_x", "need_weight"), [(True, False), (False, True)])
def test_a_gradient_that_nobody_needs_is_not_computed(need_x: bool, need_weight: bool) -> None:
    problem, values = problem_and_inputs(NORM_BACKWARD, OF_NORMS[1])
    values = (*values[:4], need_x, need_weight)
    op = registry.ops()["rms_norm_backward"]
    problem = op.pose(op.arguments(values))
    plan = plan_of(NORM_BACKWARD, problem, values)
    found = plan(*values)
    assert [one.numel() > 0 for one in found] == [need_x, need_weight]
    assert judged(op, problem, found, values).ok


@EACH
def test_a_captured_call_reads_what_its_inputs_become(implementation: CudaImplementation, shape: Shape) -> None:
    problem, values = problem_and_inputs(implementation, shape)
    check_replay(plan_of(implementation, problem, values), values)
