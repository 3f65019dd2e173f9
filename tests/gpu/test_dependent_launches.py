"""Kernels that begin before the kernel ahead has ended: they read what it wrote, in a row and in a captured graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from registry.arguments.schema import tensors_in, with_tensors
from registry.contract import as_tuple
from registry.correctness.numerics import judged
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate, Plan, build
from registry.problem import Problem
from registry.tuner.verify.late_inputs import late_inputs

if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
    pytest.skip("needs a GPU of compute capability 9.0", allow_module_level=True)

CATALOG = Catalog()
HALF = {"dtype": "bfloat16"}
INT4 = {"group_size": 128, "bits": 4, "symmetric": False, **HALF}
DECODE = {
    "heads": 32, "kv_heads": 8, "q_len": 1, "head_dim": 128, "span": False, "kv_dtype": "auto", "softcap": False,
    "lengths": "full", **HALF,
}  # fmt: skip
ROTARY = {
    "q_len": 1, "heads": 32, "kv_heads": 8, "head_dim": 128, "rotary_dim": 128, "style": "neox", "kv_len": 64, **HALF,
}  # fmt: skip
CASES = (
    ("fused_add_rms_norm", "triton.row", {"rows": 1, "cols": 4096, "weight": True, **HALF}),
    ("silu_and_mul", "triton.block", {"rows": 16, "cols": 14336, **HALF}),
    ("gelu_and_mul", "triton.block", {"rows": 16, "cols": 2048, "approximate": "tanh", **HALF}),
    ("silu_and_mul_backward", "triton.block", {"rows": 16, "cols": 2048, **HALF}),
    ("rotary_kv_append", "triton.block", {"batch": 16, "positions": False, **ROTARY}),
    ("gemm_int4", "cuda.mma", {"m": 1, "n": 6144, "k": 4096, **INT4}),
    ("gemm_int4", "cuda.mma", {"m": 16, "n": 4096, "k": 14336, **INT4}),
    ("attention_decode", "cuda.mma", {"batch": 1, "kv_len": 1024, "page": 16, **DECODE}),
    ("attention_decode", "cuda.mma", {"batch": 16, "kv_len": 1024, "page": False, **DECODE}),
)


def plan_of(op: str, name: str, dims: dict[str, Any]) -> tuple[Plan, Problem]:
    contract, device = CATALOG.op(op), Device.of("cuda")
    problem = contract.problem_of(dims)
    (implementation,) = (one for one in CATALOG.implementations(op) if one.name == name)
    candidate = Candidate(implementation, implementation.default(problem, device))
    arguments = contract.arguments(contract.draw(problem, "normal", torch.Generator("cuda").manual_seed(0)))
    return build(contract, candidate, problem, arguments, device), problem


@pytest.mark.parametrize(("op", "name", "dims"), CASES, ids=str)
def test_inputs_that_arrive_late_are_waited_for(op: str, name: str, dims: dict[str, Any]) -> None:
    contract = CATALOG.op(op)
    plan, problem = plan_of(op, name, dims)
    values = contract.draw(problem, "normal", torch.Generator("cuda").manual_seed(0))
    pristine = with_tensors(values, torch.clone)
    prepared = plan.prepared.extend(values)
    for _ in range(20):
        given = with_tensors(values, torch.clone) if contract.parsed.mutates else values
        named = zip(contract.parsed.names, given, strict=True)
        fresh = tuple(value for name, value in named if name not in contract.weights)
        late = late_inputs(Device.of("cuda"), tensors_in(fresh))
        assert late is not None
        late.spoil()
        outputs = plan.allocate()
        scratch = tuple(spec.empty() for spec in plan.signature.scratch.values())
        torch.cuda._sleep(400_000)  # the plan is queued before they have arrived
        late.arrive()
        plan.checked_run(outputs, (*given, *prepared[len(values) :]), scratch)
        verdict = judged(contract, problem, contract.results(outputs, given), pristine)
        assert not verdict.message


def test_a_layer_in_a_graph_gives_bit_by_bit_what_it_gives_one_launch_at_a_time() -> None:
    norm, _ = plan_of("fused_add_rms_norm", "triton.row", {"rows": 1, "cols": 4096, "weight": True, **HALF})
    wide, wide_problem = plan_of("gemm_int4", "cuda.mma", {"m": 1, "n": 28672, "k": 4096, **INT4})
    gated, _ = plan_of("silu_and_mul", "triton.block", {"rows": 1, "cols": 14336, **HALF})
    narrow, narrow_problem = plan_of("gemm_int4", "cuda.mma", {"m": 1, "n": 4096, "k": 14336, **INT4})
    contract = CATALOG.op("gemm_int4")
    up, down = (
        contract.draw(problem, "normal", torch.Generator("cuda").manual_seed(1))[1:]
        for problem in (wide_problem, narrow_problem)
    )
    x, residual, weight = (torch.randn(1, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    start = x.clone(), residual.clone()

    def layer(between: bool) -> torch.Tensor:
        def done() -> None:
            if between:
                torch.cuda.synchronize()

        for _ in range(4):
            norm(x, residual, weight.view(-1), 1e-5, 0.0)
            done()
            (y,) = as_tuple(wide(x, *up))
            done()
            (y,) = as_tuple(gated(y))
            done()
            (y,) = as_tuple(narrow(y, *down))
            done()
            x.copy_(y / y.abs().amax())
            done()
        return x.clone()

    def again() -> None:
        x.copy_(start[0])
        residual.copy_(start[1])

    expected = layer(between=True)
    again()
    assert torch.equal(layer(between=False), expected)
    graph = torch.cuda.CUDAGraph()
    again()
    with torch.cuda.graph(graph):
        found = layer(between=False)
    for _ in range(50):
        again()
        graph.replay()
        assert torch.equal(found, expected)
