"""Packed experts for many rows: weights written out and a dense grouped product, of many sizes and from a graph."""

from __future__ import annotations

import pytest
import torch

import registry
from registry import PackedExperts

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

NAMES = ("triton.dequantized", "triton.grouped_mm")
N, K, COUNT = 512, 256, 6


def experts() -> PackedExperts:
    generator = torch.Generator("cuda").manual_seed(0)
    weights = torch.randn(COUNT, N, K, device="cuda", dtype=torch.bfloat16, generator=generator)
    return PackedExperts.stack([registry.quantize(weight, group_size=64) for weight in weights])


def rows(m: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of which the first 3 and the last 5 are nobody's, and NaN; the second expert has none."""
    x = torch.randn(m, K, device="cuda", dtype=torch.bfloat16)
    x[:3] = x[m - 5 :] = torch.nan
    inner = torch.tensor([0.0, 0.1, 0.1, 0.4, 0.5, 0.9, 1.0], dtype=torch.float64)
    return x, (3 + inner * (m - 8)).long().cuda()


def check(y: torch.Tensor, x: torch.Tensor, weights: torch.Tensor, offsets: torch.Tensor) -> None:
    exact, ends = torch.zeros(len(x), N, device="cuda", dtype=torch.float64), offsets.tolist()
    for expert in range(COUNT):
        part = slice(ends[expert], ends[expert + 1])
        exact[part] = x[part].double() @ weights[expert].double().T
    torch.testing.assert_close(y.double(), exact, atol=0.5, rtol=2e-2)
    assert y[:3].eq(0).all()
    assert y[-5:].eq(0).all()


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "triton.grouped_mm" and torch.cuda.get_device_capability()[0] not in (9, 10):
        pytest.skip("torch's grouped kernel is for compute capability 9.0 and 10.x")
    return str(request.param)


def test_each_number_of_rows_is_computed_by_itself(name: str) -> None:
    packed = experts()
    weights = packed.dequantize()
    with registry.using(grouped_gemm_int4=name):
        for m in (4096, 64, 4097, 1000, 64, 2048):
            x, offsets = rows(m)
            check(registry.call("grouped_gemm_int4", x, packed, offsets), x, weights, offsets)
            told = registry.explain("grouped_gemm_int4", x, packed, offsets)
            assert (told.implementation, told.step) == (name, "forced")


def test_other_offsets_are_replayed_from_a_graph(name: str) -> None:
    packed = experts()
    weights, (x, offsets) = packed.dequantize(), rows(1024)
    with registry.using(grouped_gemm_int4=name):
        registry.call("grouped_gemm_int4", x, packed, offsets)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = registry.call("grouped_gemm_int4", x, packed, offsets)
    offsets[2:5] += 40
    x[3:-5].normal_()
    graph.replay()
    torch.cuda.synchronize()
    check(y, x, weights, offsets)
