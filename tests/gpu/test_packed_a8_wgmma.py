"""cuda.wgmma of gemm_w4a8 and gemm_w8a8 on a GPU: groups, dtypes, odd sizes, every config, capture."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import registry
from registry.device import Device
from registry.dispatch.plans.plan import Candidate, Plan, build
from registry.problem import Problem, Value
from registry.testing import check_implementation
from registry_cuda.packed_a8_wgmma import WgmmaPackedA8

from .replaying import check_replay

if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
    pytest.skip("needs a Hopper GPU", allow_module_level=True)
pytest.importorskip("cuda.core")

BITS = {"gemm_w4a8": 4, "gemm_w8a8": 8}


def dims_of(m: int, n: int, k: int, group_size: int = 128, activation: str = "int8", **more: Value) -> dict[str, Value]:
    dims: dict[str, Value] = {"m": m, "n": n, "k": k, "group_size": group_size, "activation": activation}
    return {**dims, "zeros": "none", "act_order": False, "static": False, "bias": False, "dtype": "bfloat16", **more}


CHECKED = [
    ("gemm_w4a8", dims_of(17, 320, 1024)),
    ("gemm_w4a8", dims_of(1, 64, 144, 32, bias=True)),
    ("gemm_w4a8", dims_of(130, 1024, 1040, 64, dtype="float16")),
    ("gemm_w4a8", dims_of(64, 192, 4096, 256, static=True)),
    ("gemm_w4a8", dims_of(33, 512, 4096, 4096, dtype="float16")),
    ("gemm_w4a8", dims_of(9, 320, 1024, activation="float8_e4m3fn")),
    ("gemm_w4a8", dims_of(257, 640, 528, 32, "float8_e4m3fn", bias=True)),
    ("gemm_w4a8", dims_of(100, 640, 4096, 4096, "float8_e4m3fn", static=True)),
    ("gemm_w8a8", dims_of(5, 320, 1024, 1024)),
    ("gemm_w8a8", dims_of(300, 1088, 2064, 2064, bias=True, dtype="float16")),
    ("gemm_w8a8", dims_of(70, 448, 1024, static=True)),
    ("gemm_w8a8", dims_of(64, 128, 16384, 16384)),
]


@pytest.mark.parametrize(("op", "dims"), CHECKED, ids=[str(place) for place in range(len(CHECKED))])
def test_groups_dtypes_and_odd_sizes_are_right(op: str, dims: dict[str, Value]) -> None:
    check_implementation(WgmmaPackedA8(op, BITS[op]), registry.ops()[op], problems=[dims])


def plan_of(problem: Problem, values: tuple[Any, ...], config: Any = None) -> Plan:
    op, device = registry.ops()[problem.op], Device.of("cuda")
    implementation = WgmmaPackedA8(op.name, BITS[op.name])
    chosen = config or implementation.default(problem, device)
    return build(op, Candidate(implementation, chosen), problem, op.arguments(values), device)


@pytest.mark.parametrize(
    ("op", "group_size", "activation"),
    [("gemm_w4a8", 64, "int8"), ("gemm_w4a8", 128, "float8_e4m3fn"), ("gemm_w8a8", 2048, "int8")],
)
@pytest.mark.parametrize("m", [7, 300])
def test_every_config_is_right(op: str, group_size: int, activation: str, m: int) -> None:
    problem = Problem(op, dims_of(m, 576, 2048, group_size, activation))
    contract = registry.ops()[op]
    values = contract.inputs(problem, "normal", torch.Generator("cuda").manual_seed(1))
    expected = contract.reference(*values[:3], values[3].double(), *values[4:])
    assert isinstance(expected, torch.Tensor)
    for config in WgmmaPackedA8(op, BITS[op]).space(problem, Device.of("cuda")):
        y = plan_of(problem, values, config)(*values)
        assert isinstance(y, torch.Tensor)
        assert (y.double() - expected).abs().max() <= 0.03 * expected.square().mean().sqrt(), config


def test_a_captured_call_reads_what_the_activations_become() -> None:
    problem = Problem("gemm_w4a8", dims_of(64, 576, 2048))
    values = registry.ops()["gemm_w4a8"].inputs(problem, "normal", torch.Generator("cuda").manual_seed(1))
    check_replay(plan_of(problem, values), values)
