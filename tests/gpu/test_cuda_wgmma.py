"""cuda.wgmma on a Hopper GPU: dtypes, scales and odd sizes, every config of small problems, capture, new sizes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from registry.contract import Op
from registry.contracts import LINEAR, SCALED_MM
from registry.device import Device
from registry.dispatch.plans.plan import Candidate, Plan, build
from registry.problem import Problem, Value
from registry.space import Config
from registry.testing import check_implementation
from registry_cuda.linear import WgmmaLinear
from registry_cuda.scaled_mm import WgmmaScaledMm

from .replaying import check_replay

if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
    pytest.skip("needs a Hopper GPU", allow_module_level=True)
pytest.importorskip("cuda.core")

Product = tuple[Op, Any, Problem]


def linear(m: int, n: int, k: int, *, bias: bool = False, dtype: str = "bfloat16") -> Product:
    return LINEAR, WgmmaLinear(), Problem("linear", {"m": m, "n": n, "k": k, "bias": bias, "dtype": dtype})


def scaled(m: int, n: int, k: int, scales: str, *, bias: bool = False, out_dtype: str = "bfloat16") -> Product:
    dims: dict[str, Value] = {"m": m, "n": n, "k": k, "scales": scales, "bias": bias, "out_dtype": out_dtype}
    return SCALED_MM, WgmmaScaledMm(), Problem("scaled_mm", {**dims, "dtype": "float8_e4m3fn"})


CHECKED = [
    linear(17, 8, 16, bias=True),
    linear(300, 520, 1000),
    linear(129, 1016, 4096, bias=True, dtype="float16"),
    scaled(33, 272, 144, "tensor", bias=True),
    scaled(300, 528, 1040, "row", out_dtype="float16"),
    scaled(257, 132, 4096, "row", bias=True, out_dtype="float32"),
    scaled(200, 400, 400, "block", bias=True),
]


@pytest.mark.parametrize("product", CHECKED, ids=[str(place) for place in range(len(CHECKED))])
def test_dtypes_scales_and_odd_sizes_are_right(product: Product) -> None:
    op, implementation, problem = product
    check_implementation(implementation, op, problems=[dict(problem.dims)])


def values_of(product: Product) -> tuple[Any, ...]:
    op, _, problem = product
    return op.inputs(problem, "normal", torch.Generator("cuda").manual_seed(3))


def plan_of(product: Product, values: tuple[Any, ...], config: Config | None = None) -> Plan:
    op, implementation, problem = product
    device = Device.of("cuda")
    chosen = config or implementation.default(problem, device)
    return build(op, Candidate(implementation, chosen), problem, op.arguments(values), device)


def float64_product(product: Product, values: tuple[Any, ...]) -> torch.Tensor:
    a, b, *rest = values
    if product[2].op == "linear":
        plain: torch.Tensor = torch.nn.functional.linear(
            a.double(), b.double(), None if rest[0] is None else rest[0].double()
        )
        return plain
    scale_a, scale_b, bias, _ = rest
    left, right = a.double(), b.double()
    if product[2].scales == "block":
        left = left * scale_a.double().repeat_interleave(128, 1)[:, : a.shape[1]]
        down = scale_b.double().repeat_interleave(128, 0)[: b.shape[0]]
        y = left @ (right * down.repeat_interleave(128, 1)[:, : b.shape[1]]).T
    else:
        y = left @ right.T * scale_a.double() * scale_b.double().reshape(-1)
    added: torch.Tensor = y if bias is None else y + bias.double()
    return added


EVERY = [
    linear(300, 520, 1000, bias=True),
    linear(100, 264, 72, dtype="float16"),
    scaled(300, 528, 1040, "row", bias=True),
    scaled(520, 784, 400, "block", out_dtype="float16"),
    scaled(300, 260, 272, "tensor", bias=True, out_dtype="float32"),
]


@pytest.mark.parametrize("product", EVERY, ids=[str(place) for place in range(len(EVERY))])
def test_every_config_is_right_twice_alike(product: Product) -> None:
    values = values_of(product)
    expected = float64_product(product, values)
    for config in product[1].space(product[2], Device.of("cuda")):
        if config["group_m"] != 8:
            continue
        plan = plan_of(product, values, config)
        y = plan(*values)
        assert (y.double() - expected).norm() <= 4e-3 * expected.norm(), config
        assert torch.equal(plan(*values), y), config


def test_a_captured_call_reads_what_the_activations_become() -> None:
    product = linear(128, 256, 512)
    values = values_of(product)
    plan = plan_of(product, values)
    check_replay(plan, values)


def test_another_number_of_rows_has_tensor_maps_of_its_own() -> None:
    implementation, device = WgmmaLinear(), Device.of("cuda")
    config = implementation.default(linear(256, 256, 512)[2], device)
    for m in (256, 200, 1000, 256):
        product = linear(m, 256, 512)
        values = values_of(product)
        y = plan_of(product, values, config)(*values)
        expected = float64_product(product, values)
        assert (y.double() - expected).norm() <= 4e-3 * expected.norm(), m


def test_the_thread_that_launches_first_needs_no_context() -> None:
    product = linear(96, 328, 640)
    values = values_of(product)
    torch.cuda.synchronize()
    with ThreadPoolExecutor(1) as pool:
        y = pool.submit(lambda: plan_of(product, values)(*values)).result()
    expected = float64_product(product, values)
    assert (y.double() - expected).norm() <= 4e-3 * expected.norm()
