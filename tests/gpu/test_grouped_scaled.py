"""Experts in float8 and int8 on a GPU: every implementation at a mixture's shapes, graphs, and a small Mixtral."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import registry
from registry.contracts import GROUPED_SCALED_MM as OP
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.testing import check_implementation

from ..integrations.transformers.tiny_models import prompt, tiny

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

NAMES = tuple(one.name for one in Catalog().implementations(OP.name) if "cuda" in one.device_types)
EMPTY = (0, 40, 40, 41, 41, 300, 300, 300, 377)
"""Offsets of 8 experts, half of them without rows; the others have 40, 1, 259 and 77."""


def skip_unless_supported(name: str, dims: dict[str, Any]) -> None:
    reasons = list(Catalog().implementation(OP.name, name).unsupported(OP.problem_of(dims), Device.of("cuda")))
    if reasons:
        pytest.skip("; ".join(reasons))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("m", "n", "k", "experts", "routing"),
    [
        (2, 3584, 2048, 8, "uniform"),
        (128, 2048, 3584, 8, "skewed"),
        (1024, 768, 1024, 64, "skewed"),
        (2048, 1024, 384, 64, "one_expert"),
    ],
)
def test_it_is_right_at_the_shapes_of_mixtures(
    name: str, dtype: str, m: int, n: int, k: int, experts: int, routing: str
) -> None:
    sizes = {"m": m, "n": n, "k": k, "experts": experts, "routing": routing}
    dims = {**sizes, "out_dtype": "bfloat16", "dtype": dtype}
    skip_unless_supported(name, dims)
    report = check_implementation(Catalog().implementation(OP.name, name), OP, problems=[dims], device="cuda")
    assert report.ok


def operands(offsets: Sequence[int], rows: int, n: int, k: int, dtype: str) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16, generator=generator)
    x[:, ::97] *= 40
    weights = torch.randn(len(offsets) - 1, n, k, device="cuda", dtype=torch.bfloat16, generator=generator)
    levels, scale_x = registry.call("quantize_per_token", x, dtype)
    rounded, scale = registry.call("quantize_per_token", weights, dtype)
    return levels, rounded, torch.tensor(offsets, device="cuda"), scale_x, scale


def check(
    y: torch.Tensor, x: torch.Tensor, weights: torch.Tensor, offsets: torch.Tensor, *scales: torch.Tensor
) -> None:
    ends, wide = offsets.tolist(), x.double() * scales[0]
    exact = torch.zeros_like(y, dtype=torch.float64)
    for expert in range(len(weights)):
        part = slice(ends[expert], ends[expert + 1])
        exact[part] = wide[part] @ (weights[expert].double() * scales[1][expert]).T
    error = (y.double() - exact).abs()
    assert (error <= 0.01 * (exact.abs() + exact.square().mean(-1, keepdim=True).sqrt())).all()


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
@pytest.mark.parametrize("name", NAMES)
def test_experts_without_rows_and_rows_without_experts(name: str, dtype: str) -> None:
    given = operands(EMPTY, 384, 4096, 1024, dtype)
    sizes = {"m": 384, "n": 4096, "k": 1024, "experts": 8}
    skip_unless_supported(name, {**sizes, "routing": "uniform", "out_dtype": "bfloat16", "dtype": dtype})
    with registry.using(grouped_scaled_mm=name):
        y = registry.call(OP.name, *given)
        assert registry.explain(OP.name, *given).implementation == name
    assert isinstance(y, torch.Tensor)
    check(y, *given)
    assert y[377:].eq(0).all()


@pytest.mark.parametrize("name", ["triton.gemm", "torch.scaled_grouped_mm"])
def test_other_offsets_are_replayed_from_a_graph(name: str) -> None:
    given = operands(EMPTY, 384, 1024, 512, "float8_e4m3fn")
    dims = {"m": 384, "n": 1024, "k": 512, "experts": 8, "routing": "uniform", "out_dtype": "bfloat16"}
    skip_unless_supported(name, {**dims, "dtype": "float8_e4m3fn"})
    with registry.using(grouped_scaled_mm=name):
        registry.call(OP.name, *given)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = registry.call(OP.name, *given)
    assert isinstance(y, torch.Tensor)
    given[2][1:5] += torch.tensor([9, 50, 99, 99], device="cuda")
    graph.replay()
    torch.cuda.synchronize()
    check(y, *given)


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.parametrize("quantize", ["fp8", "w8a8"])
def test_a_small_mixtral_is_near_the_plain_one(quantize: Any) -> None:
    from registry.integrations.transformers import apply

    if quantize == "fp8" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no float8")
    plain = tiny("mixtral", torch.bfloat16, hidden_size=128, intermediate_size=256).cuda()
    packed = tiny("mixtral", torch.bfloat16, hidden_size=128, intermediate_size=256).cuda()
    report = apply(packed, quantize=quantize)
    assert len(report.replaced["experts packed in 8 bits"]) == 2
    tokens = prompt().cuda()
    with torch.no_grad():
        expected = plain(tokens).logits.double()
        for model in (packed, torch.compile(packed, fullgraph=True)):
            error = model(tokens).logits.double() - expected
            assert error.square().mean().sqrt() < 0.15 * expected.square().mean().sqrt()
