"""On a GPU: torch's operators, Inductor's code compiled in another process, tinygemm, captured grouped products."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate, build
from registry.problem import Value
from registry.testing import check_implementation

from .replaying import replayed

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

PROBLEMS: dict[str, dict[str, Value]] = {
    "vector_add": {"n": 65_537, "dtype": "bfloat16"},
    "square": {"n": 65_537, "dtype": "float16"},
    "gelu": {"n": 65_537, "dtype": "bfloat16", "approximate": "tanh"},
    "softmax": {"rows": 33, "cols": 4099, "dtype": "bfloat16"},
    "rms_norm": {"rows": 33, "cols": 4096, "dtype": "bfloat16"},
    "gemm_int4": {
        "m": 5, "n": 256, "k": 512, "group_size": 128, "bits": 4, "dtype": "bfloat16", "symmetric": False,
    },
    "square_backward": {"n": 65_537, "dtype": "bfloat16"},
    "gelu_backward": {"n": 65_537, "dtype": "bfloat16", "approximate": "tanh"},
    "softmax_backward": {"rows": 33, "cols": 4099, "dtype": "float32"},
    "rms_norm_backward": {"rows": 333, "cols": 4096, "dtype": "bfloat16"},
    **{
        op: {"m": 300, "n": 256, "k": 512, "experts": 9, "routing": "skewed", "dtype": "bfloat16"}
        for op in ("grouped_gemm", "grouped_gemm_backward")
    },
    "fused_moe": {
        "tokens": 150, "hidden": 256, "intermediate": 512, "experts": 9, "top_k": 2, "activation": "silu",
        "routing": "skewed", "dtype": "bfloat16",
    },
}  # fmt: skip


@pytest.mark.parametrize("op", list(PROBLEMS))
def test_torchs_own_and_inductors_are_right(catalog: Catalog, op: str) -> None:
    for name in ("torch.native", "torch.compile"):
        implementation = catalog.implementation(op, name)
        assert check_implementation(implementation, catalog.op(op), problems=[PROBLEMS[op]], device="cuda").checked


@pytest.mark.parametrize(
    ("name", "dtype", "scales"),
    [
        ("torch.scaled_mm", "float8_e4m3fn", "tensor"),
        ("torch.scaled_mm", "float8_e4m3fn", "row"),
        ("torch.int_mm", "int8", "row"),
        ("torch.compile", "int8", "row"),
    ],
)
def test_scaled_products_are_right_wherever_tensors_begin(catalog: Catalog, name: str, dtype: str, scales: str) -> None:
    op, implementation = catalog.op("scaled_mm"), catalog.implementation("scaled_mm", name)
    dims = {"m": 37, "n": 256, "k": 512, "scales": scales, "bias": False, "out_dtype": "bfloat16", "dtype": dtype}
    if reasons := list(implementation.unsupported(op.problem_of(dims), Device.of("cuda"))):
        pytest.skip("; ".join(reasons))
    assert check_implementation(implementation, op, problems=[dims], device="cuda").checked


@pytest.mark.parametrize("name", ["torch.grouped_mm", "triton.gemm"])
@pytest.mark.parametrize("op", ["grouped_gemm", "grouped_gemm_backward"])
def test_a_captured_grouped_product_follows_its_offsets(catalog: Catalog, op: str, name: str) -> None:
    contract, implementation, device = catalog.op(op), catalog.implementation(op, name), Device.of("cuda")
    problem = contract.problem_of(PROBLEMS[op])
    if reasons := list(implementation.unsupported(problem, device)):
        pytest.skip(reasons[0])
    verdict = replayed(contract, implementation, problem)
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("name", ["torch.grouped_mm", "torch.compile", "triton.gemm", "triton.gemv"])
@pytest.mark.parametrize("tokens", [1, 32, 150])
def test_captured_experts_follow_their_ids(catalog: Catalog, name: str, tokens: int) -> None:
    contract, implementation = catalog.op("fused_moe"), catalog.implementation("fused_moe", name)
    problem = contract.problem_of({**PROBLEMS["fused_moe"], "tokens": tokens})
    if reasons := list(implementation.unsupported(problem, Device.of("cuda"))):
        pytest.skip(reasons[0])
    verdict = replayed(contract, implementation, problem)
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("symmetric", [False, True])
def test_tinygemm_is_right_with_every_packing(catalog: Catalog, group_size: int, symmetric: bool) -> None:
    dims = {**PROBLEMS["gemm_int4"], "group_size": group_size, "symmetric": symmetric}
    problems = [{**dims, "m": m} for m in (1, 16, 33)]
    tinygemm = catalog.implementation("gemm_int4", "torch.tinygemm")
    report = check_implementation(tinygemm, catalog.op("gemm_int4"), problems=problems, device="cuda", configs="all")
    assert report.checked


COMPILE = """
from registry.arguments.schema import tensors_in
from registry.correctness.numerics import judged
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate, Draft
from registry.problem import Arguments, TensorSpec
import torch
catalog, device = Catalog(), Device.of("cuda")
op, implementation = catalog.op("square"), catalog.implementation("square", "torch.compile")
problem = op.problem_of({"n": 12345, "dtype": "float32"})
arguments = Arguments("square", {"x": TensorSpec.contiguous((12345,), torch.float32, device.torch)})
candidate = Candidate(implementation, {})
(variant,) = Draft.of(op, candidate, problem, arguments, device).variants()
print(implementation.compile(variant, device.target).path)
"""


def test_what_another_process_compiled_is_loaded(catalog: Catalog) -> None:
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, check=True)
    path = done.stdout.strip()
    assert Path(path).exists()
    op, x = catalog.op("square"), torch.randn(12345, device="cuda")
    arguments = op.arguments((x,))
    candidate: Any = Candidate(catalog.implementation("square", "torch.compile"), {})
    plan = build(op, candidate, op.pose(arguments), arguments, Device.of("cuda"))
    assert [artifact.path for artifact in plan.artifacts] == [path]
    assert torch.equal(plan(x), x * x)
