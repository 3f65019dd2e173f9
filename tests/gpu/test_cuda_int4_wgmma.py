"""cuda.wgmma on a GPU: groups, dtypes and odd sizes, every config of a small problem, capture, one weight for all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from registry.contracts import GEMM_INT4
from registry.device import Device
from registry.dispatch.plans.plan import Candidate, Plan, build
from registry.dispatch.plans.prepared import forget_prepared, prepared_bytes
from registry.problem import Problem, Value
from registry.testing import check_implementation
from registry_cuda.gemm_int4 import MmaInt4
from registry_cuda.gemm_int4_wgmma import WgmmaInt4

from .replaying import check_replay

if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
    pytest.skip("needs a Hopper GPU", allow_module_level=True)
pytest.importorskip("cuda.core")

MMA = MmaInt4()
WGMMA = WgmmaInt4(MMA)


def dims_of(m: int, n: int, k: int, group_size: int = 128, **more: Value) -> dict[str, Value]:
    dims: dict[str, Value] = {"m": m, "n": n, "k": k, "group_size": group_size, "bits": 4, "dtype": "bfloat16"}
    return {**dims, "symmetric": False, **more}


CHECKED = [
    dims_of(17, 264, 1024),
    dims_of(9, 128, 256),
    dims_of(130, 1000, 1024, 32, symmetric=True),
    dims_of(64, 4100, 4096, 4096, dtype="float16", symmetric=True),
    dims_of(33, 6144, 4096, 32, dtype="float16"),
    dims_of(257, 640, 512, 64, dtype="float16", symmetric=True),
    dims_of(96, 136, 1024, 1024),
]


@pytest.mark.parametrize("dims", CHECKED, ids=[str(place) for place in range(len(CHECKED))])
def test_groups_dtypes_and_odd_sizes_are_right(dims: dict[str, Value]) -> None:
    check_implementation(WGMMA, GEMM_INT4, problems=[dims])


def plan_of(implementation: Any, m: int, values: tuple[Any, ...], config: Any = None) -> Plan:
    problem, device = Problem("gemm_int4", dims_of(m, 520, 1024)), Device.of("cuda")
    chosen = config or implementation.default(problem, device)
    return build(GEMM_INT4, Candidate(implementation, chosen), problem, GEMM_INT4.arguments(values), device)


def values_of(m: int, zeros: float = 0.0) -> tuple[Any, ...]:
    values = GEMM_INT4.inputs(Problem("gemm_int4", dims_of(m, 520, 1024)), "normal", torch.Generator("cuda"))
    return (*values[:3], values[3] + zeros, *values[4:])


@pytest.mark.parametrize("zeros", [0.0, 0.5], ids=["whole", "broken"])
def test_every_config_is_right_whatever_the_zero_points(zeros: float) -> None:
    values = values_of(200, zeros)
    expected = GEMM_INT4.reference(values[0].double(), values[1], values[2].double(), values[3].double(), *values[4:])
    space = WGMMA.space(Problem("gemm_int4", dims_of(200, 520, 1024)), Device.of("cuda"))
    for config in space:
        y = plan_of(WGMMA, 200, values, config)(*values)
        assert (y.double() - expected).abs().max() <= 0.03 * expected.square().mean().sqrt(), config


def test_a_captured_call_reads_what_the_activations_become() -> None:
    values = values_of(64)
    plan = plan_of(WGMMA, 64, values)
    check_replay(plan, values)


def test_decode_and_prefill_hold_one_weight() -> None:
    forget_prepared()
    many = values_of(64)
    few = (many[0][:1].contiguous(), *many[1:])
    plan_of(MMA, 1, few)(*few)
    before = prepared_bytes()
    plan_of(WGMMA, 64, many)(*many)
    assert prepared_bytes() - before <= 1024
