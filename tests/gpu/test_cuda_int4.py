"""cuda.mma on a GPU: the contract's examples and odd sizes, every config of small problems, capture."""

from __future__ import annotations

import pytest
import torch

from registry.contracts import GEMM_INT4
from registry.device import Device
from registry.dispatch.plan import Candidate, build
from registry.problem import Problem, Value
from registry.testing import check_implementation
from registry_cuda.gemm_int4 import MmaInt4

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
pytest.importorskip("cuda.core")


def dims_of(m: int, n: int, k: int, group_size: int = 128, **more: Value) -> dict[str, Value]:
    return {
        "m": m,
        "n": n,
        "k": k,
        "group_size": group_size,
        "bits": 4,
        "dtype": "bfloat16",
        "symmetric": False,
        **more,
    }


def test_examples_and_large_problems_are_right() -> None:
    large = [dims_of(m, 6144, 4096) for m in (1, 16, 31, 64, 130)]
    large += [
        dims_of(8, 4096, 14336, 32, dtype="float16"),
        dims_of(3, 4100, 4096, 4096, dtype="float16", symmetric=True),
    ]
    large += [dims_of(256, 1000, 1048, 1048)]
    check_implementation(MmaInt4(), GEMM_INT4, problems=[*GEMM_INT4.examples, *large])


@pytest.mark.parametrize("m", [1, 16, 64])
def test_every_config_is_right(m: int) -> None:
    check_implementation(MmaInt4(), GEMM_INT4, problems=[dims_of(m, 264, 1024)], configs="all")


def test_a_captured_call_reads_what_the_activations_become() -> None:
    problem, device, mma = Problem("gemm_int4", dims_of(16, 4096, 4096)), Device.of("cuda"), MmaInt4()
    values = GEMM_INT4.inputs(problem, "normal", torch.Generator("cuda").manual_seed(1))
    candidate = Candidate(mma, mma.default(problem, device))
    plan = build(GEMM_INT4, candidate, problem, GEMM_INT4.arguments(values), device)
    plan(*values)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = plan(*values)
    values[0].neg_()
    expected = plan(*values).clone()
    graph.replay()
    assert torch.equal(y, expected)
