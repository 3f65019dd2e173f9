"""torch.cusparselt on a GPU: numbers, capture, and every algorithm that the library has for a size."""

from __future__ import annotations

import pytest
import torch

import registry
from registry import UnsupportedError
from registry.correctness.numerics import judged
from registry.device import Device
from registry.dispatch.plans.plan import Candidate, build
from registry.testing import check_implementation
from registry_torch.cusparselt import CuSparseLt
from registry_torch.cusparselt_private import compressed

from .replaying import replayed

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
if not torch.backends.cusparselt.is_available():
    pytest.skip("needs cuSPARSELt", allow_module_level=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_it_is_right(dtype: str) -> None:
    shapes = [(1, 64, 128), (17, 96, 160), (300, 512, 1024)]
    problems = [{"m": m, "n": n, "k": k, "dtype": dtype, "bias": False} for m, n, k in shapes]
    assert check_implementation(CuSparseLt(), registry.ops()["gemm_sparse24"], problems=problems).checked


def test_a_compressed_weight_has_the_size_that_is_told_before() -> None:
    dense = registry.sparsify24(torch.randn(96, 160, device="cuda", dtype=torch.float16)).dense()
    made, told = compressed(dense), compressed(dense.to("meta"))
    assert (made.shape, made.dtype) == (told.shape, told.dtype)


def test_a_graph_follows_its_inputs() -> None:
    op = registry.ops()["gemm_sparse24"]
    problem = op.problem_of({"m": 64, "n": 256, "k": 512, "dtype": "bfloat16", "bias": False})
    verdict = replayed(op, CuSparseLt(), problem)
    assert verdict.ok, verdict.message


def test_every_algorithm_is_right_or_unsupported() -> None:
    op, device = registry.ops()["gemm_sparse24"], Device.of("cuda")
    problem = op.problem_of({"m": 128, "n": 1024, "k": 2048, "dtype": "bfloat16", "bias": False})
    values = op.inputs(problem, "normal", torch.Generator("cuda").manual_seed(1))
    right = 0
    for config in CuSparseLt().space(problem, device):
        plan = build(op, Candidate(CuSparseLt(), config), problem, op.arguments(values), device)
        try:
            y = plan(*values)
        except UnsupportedError:
            continue
        verdict = judged(op, problem, y, values)
        assert verdict.ok, f"{config}: {verdict.message}"
        right += 1
    assert right > 0
