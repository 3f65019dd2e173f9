"""Linear layers of the models in configs/llm.yaml, at its extremes: every kernel that says it can is right."""

from __future__ import annotations

import math

import pytest
import torch

import registry
from registry import Device
from registry.discovery.answers import refusals
from registry.discovery.catalog import Catalog

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

EXTREMES = [
    (8192, 151936, 5120),  # a head, whose outputs take more than 2**31 bytes
    (1, 128256, 8192),
    (8192, 32768, 512),  # keys and values of latents: the shortest rows
    (16, 24576, 1536),
    (48, 576, 7168),
    (96, 4096, 11008),  # no multiple of 256
    (4096, 57344, 8192),
]
ROUTERS = [(1, 8, 4096), (8192, 8, 4096), (64, 128, 2048), (96, 256, 7168)]
COMPILED = "torch.compile"
"""Inductor takes minutes for these sizes, and is tested elsewhere."""


def able(op: str, dims: dict[str, int | float | str | bool]) -> list[str]:
    """The implementations that support a problem on this GPU."""
    catalog, device = Catalog(), Device.of("cuda")
    problem = catalog.op(op).problem_of(dims)
    each = catalog.implementations(op)
    return [one.name for one in each if one.name != COMPILED and not refusals(one, problem, device)]


def check(op: str, weight: torch.Tensor | registry.PackedWeight, dense: torch.Tensor, m: int, names: list[str]) -> None:
    """Compare three rows of each implementation's outputs, of about unit size, with a product in float64."""
    x = torch.randn(m, dense.shape[1], device="cuda", dtype=torch.bfloat16)
    rows = sorted({0, m // 2, m - 1})
    expected = x[rows].double() @ dense.double().T
    assert names
    for name in names:
        with registry.using(**{op: name}):
            found = registry.call(op, x, weight)[rows].double()
        off = ((found - expected).abs() - 2e-2 * expected.abs()).max().item()
        assert off < 4e-2, f"{name}: {off} beyond 2%"


@pytest.mark.parametrize(("m", "n", "k"), EXTREMES + ROUTERS)
def test_every_dense_product_is_right(m: int, n: int, k: int) -> None:
    names = able("linear", {"m": m, "n": n, "k": k, "bias": False, "dtype": "bfloat16"})
    weight = torch.randn(n, k, device="cuda", dtype=torch.bfloat16) / math.sqrt(k)
    check("linear", weight, weight, m, names)


@pytest.mark.parametrize(("m", "n", "k"), EXTREMES)
def test_every_4_bit_product_is_right(m: int, n: int, k: int) -> None:
    sizes = {"m": m, "n": n, "k": k, "group_size": 128, "bits": 4}
    names = able("gemm_int4", {**sizes, "symmetric": False, "dtype": "bfloat16"})
    dense = torch.randn(n, k, device="cuda", dtype=torch.bfloat16) / math.sqrt(k)
    weight = registry.quantize(dense, bits=4, group_size=128)
    check("gemm_int4", weight, weight.dequantize(), m, names)
