"""cuda.wgmma of packed weights on a GPU: groups, dtypes, odd sizes, every config, capture."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import registry
from registry.device import Device
from registry.dispatch.plans.plan import Candidate, Plan, build
from registry.problem import Problem, Value
from registry.testing import check_implementation
from registry_cuda.packed_wgmma import WgmmaPacked

from .replaying import check_replay

if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
    pytest.skip("needs a Hopper GPU", allow_module_level=True)
pytest.importorskip("cuda.core")

BITS = {"gemm_w4a8": 4, "gemm_w8a8": 8, "gemm_int8": 8, "gemm_int2": 2, "gemm_int1": 1, "gemm_w4a16": 4}


def dims_of(m: int, n: int, k: int, group_size: int = 128, activation: str = "", **more: Value) -> dict[str, Value]:
    dims: dict[str, Value] = {"m": m, "n": n, "k": k, "group_size": group_size, "zeros": "none", "act_order": False}
    dims |= {"bias": False, "dtype": "bfloat16"}
    return {**dims, **({"activation": activation, "static": False} if activation else {}), **more}


CHECKED = [
    ("gemm_w4a8", dims_of(17, 320, 1024, 128, "int8")),
    ("gemm_w4a8", dims_of(1, 64, 144, 32, "int8", bias=True)),
    ("gemm_w4a8", dims_of(130, 1024, 1040, 64, "int8", dtype="float16")),
    ("gemm_w4a8", dims_of(64, 192, 4096, 256, "int8", static=True)),
    ("gemm_w4a8", dims_of(33, 512, 4096, 4096, "int8", dtype="float16")),
    ("gemm_w4a8", dims_of(9, 320, 1024, 128, "float8_e4m3fn")),
    ("gemm_w4a8", dims_of(257, 640, 528, 32, "float8_e4m3fn", bias=True)),
    ("gemm_w4a8", dims_of(100, 640, 4096, 4096, "float8_e4m3fn", static=True)),
    ("gemm_w8a8", dims_of(5, 320, 1024, 1024, "int8")),
    ("gemm_w8a8", dims_of(300, 1088, 2064, 2064, "int8", bias=True, dtype="float16")),
    ("gemm_w8a8", dims_of(70, 448, 1024, 128, "int8", static=True)),
    ("gemm_w8a8", dims_of(64, 128, 16384, 16384, "int8")),
    ("gemm_int8", dims_of(17, 320, 1024)),
    ("gemm_int8", dims_of(130, 640, 1040, 32, zeros="integer", bias=True)),
    ("gemm_int8", dims_of(65, 640, 4096, 4096)),
    ("gemm_int8", dims_of(9, 320, 2048, 2048, zeros="integer", dtype="float16")),
    ("gemm_int2", dims_of(1, 64, 144, 64, zeros="integer")),
    ("gemm_int2", dims_of(200, 448, 2048, 128, dtype="float16")),
    ("gemm_int2", dims_of(33, 576, 4096, 4096, zeros="integer")),
    ("gemm_int1", dims_of(5, 320, 1024, 64)),
    ("gemm_int1", dims_of(150, 640, 4096, 32, zeros="integer", dtype="float16")),
    ("gemm_int1", dims_of(64, 128, 4096, 4096, bias=True)),
    ("gemm_w4a16", dims_of(48, 640, 1024, 256, zeros="integer")),
    ("gemm_w4a16", dims_of(257, 320, 528, 528, dtype="float16")),
]


@pytest.mark.parametrize(("op", "dims"), CHECKED, ids=[str(place) for place in range(len(CHECKED))])
def test_groups_dtypes_and_odd_sizes_are_right(op: str, dims: dict[str, Value]) -> None:
    check_implementation(WgmmaPacked(op, BITS[op]), registry.ops()[op], problems=[dims])


def plan_of(problem: Problem, values: tuple[Any, ...], config: Any = None) -> Plan:
    op, device = registry.ops()[problem.op], Device.of("cuda")
    implementation = WgmmaPacked(op.name, BITS[op.name])
    chosen = config or implementation.default(problem, device)
    return build(op, Candidate(implementation, chosen), problem, op.arguments(values), device)


@pytest.mark.parametrize(
    ("op", "group_size", "more"),
    [
        ("gemm_w4a8", 64, {"activation": "int8", "static": False}),
        ("gemm_w8a8", 2048, {"activation": "int8", "static": False}),
        ("gemm_int8", 128, {}),
        ("gemm_int2", 2048, {"zeros": "integer"}),
    ],
)
@pytest.mark.parametrize("m", [7, 300])
def test_every_config_is_right(op: str, group_size: int, more: dict[str, Value], m: int) -> None:
    problem = Problem(op, {**dims_of(m, 576, 2048, group_size), **more})
    contract = registry.ops()[op]
    values = contract.inputs(problem, "normal", torch.Generator("cuda").manual_seed(1))
    expected = contract.reference(*(value.double() if is_wide(value) else value for value in values))
    assert isinstance(expected, torch.Tensor)
    for config in WgmmaPacked(op, BITS[op]).space(problem, Device.of("cuda")):
        y = plan_of(problem, values, config)(*values)
        assert isinstance(y, torch.Tensor)
        assert (y.double() - expected).abs().max() <= 0.03 * expected.square().mean().sqrt(), config


def is_wide(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)


def test_a_captured_call_reads_what_the_activations_become() -> None:
    problem = Problem("gemm_w4a8", dims_of(64, 576, 2048, 128, "int8"))
    values = registry.ops()["gemm_w4a8"].inputs(problem, "normal", torch.Generator("cuda").manual_seed(1))
    check_replay(plan_of(problem, values), values)
