"""registry_humming on a GPU: every op, dtype, kind of zero points and group size; every tile; graphs on two streams."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import registry
from registry.device import Device
from registry.dispatch.plans.plan import Candidate, Plan, build
from registry.problem import Problem, Value
from registry.testing import check_implementation
from registry_humming.gemm import HummingHeuristic, HummingTiles

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
pytest.importorskip("humming")

OPS = ("gemm_int4", "gemm_int8", "gemm_int2", "gemm_int1")


def dims_of(op: str, m: int, n: int, k: int, group_size: int = 128, **more: Value) -> dict[str, Value]:
    dims: dict[str, Value] = {"m": m, "n": n, "k": k, "group_size": group_size, "dtype": "bfloat16"}
    zeros = more.pop("zeros", "integer")
    if op == "gemm_int4":
        return {**dims, "bits": 4, "symmetric": zeros == "none", **more}
    return {**dims, "zeros": zeros, "act_order": False, "bias": False, **more}


FORMS = [
    (op, dtype, zeros)
    for place, op in enumerate(OPS)
    for dtype, zeros in zip(("float16", "bfloat16"), ("none", "integer")[:: 1 if place % 2 else -1], strict=True)
]
"""Every dtype and kind of zero points, and each with half of the ops: a kernel is compiled for seconds."""


def problems_of(form: tuple[str, str, str], *sizes: tuple[int, int, int, int]) -> list[dict[str, Value]]:
    op, dtype, zeros = form
    return [dims_of(op, m, n, k, group_size, dtype=dtype, zeros=zeros) for m, n, k, group_size in sizes]


@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_every_form_of_the_weight_is_right_in_tiles(form: tuple[str, str, str]) -> None:
    problems = problems_of(form, (3, 2432, 192, 64), (70, 2176, 1024, 1024), (300, 2048, 4096, 32))
    check_implementation(HummingTiles(form[0]), registry.ops()[form[0]], problems=problems)


@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_what_the_library_chooses_is_right_where_blocks_share_no_long_sums(form: tuple[str, str, str]) -> None:
    problems = problems_of(form, (1, 2304, 64, 32), (17, 2176, 512, 128), (300, 16896, 512, 32))
    check_implementation(HummingHeuristic(form[0]), registry.ops()[form[0]], problems=problems)


@pytest.mark.parametrize("m", [1, 16, 64, 600])
def test_every_tile_is_right(m: int) -> None:
    problems = [dims_of("gemm_int4", m, 512, 1024)]
    check_implementation(HummingTiles("gemm_int4"), registry.ops()["gemm_int4"], problems=problems, configs="all")


def plan_of(m: int) -> tuple[Plan, tuple[Any, ...]]:
    op, tiled = registry.ops()["gemm_int4"], HummingTiles("gemm_int4")
    problem, device = Problem("gemm_int4", dims_of("gemm_int4", m, 4096, 4096)), Device.of("cuda")
    values = op.inputs(problem, "normal", torch.Generator("cuda").manual_seed(1))
    candidate = Candidate(tiled, tiled.default(problem, device))
    return build(op, candidate, problem, op.arguments(values), device), values


def near(y: torch.Tensor, values: tuple[Any, ...]) -> None:
    expected: Any = registry.ops()["gemm_int4"].reference(*values)
    torch.testing.assert_close(y.float(), expected.float(), rtol=0.02, atol=0.05)


def test_a_first_launch_may_be_captured_once_the_weight_is_prepared() -> None:
    plan, values = plan_of(16)
    extended = plan.prepared.extend(values)
    (y,) = plan.allocate()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run((y,), extended, ())
    values[0].normal_()
    graph.replay()
    near(y, values)


def test_graphs_that_are_replayed_beside_each_other_and_beside_calls_are_right() -> None:
    plan, values = plan_of(16)
    expected = plan(*values)
    graphs, results = [], []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results.append([plan(*values) for _ in range(20)])
        graphs.append(graph)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for _ in range(20):
        for graph, stream in zip(graphs, streams, strict=False):
            with torch.cuda.stream(stream):
                graph.replay()
        with torch.cuda.stream(streams[2]):
            beside = [plan(*values) for _ in range(20)]
    torch.cuda.synchronize()
    for y in (expected, *results[0], *results[1], *beside):
        near(y, values)
