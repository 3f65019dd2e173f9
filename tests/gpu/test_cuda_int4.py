"""cuda.mma on a GPU: the contract's examples and odd sizes, every config of small problems, capture."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from registry.contracts import GEMM_INT4
from registry.device import Device
from registry.dispatch.plans import prepared
from registry.dispatch.plans.plan import Candidate, Plan, build
from registry.dispatch.plans.prepared import forget_prepared, weights_changed
from registry.problem import Problem, Value
from registry.testing import check_implementation
from registry_cuda.gemm_int4 import MmaInt4

from .replaying import check_replay

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
    check_replay(plan, values)


def plan_and_values(m: int, seed: int = 1) -> tuple[Plan, tuple[Any, ...]]:
    problem, device, mma = Problem("gemm_int4", dims_of(m, 512, 1024)), Device.of("cuda"), MmaInt4()
    values = GEMM_INT4.inputs(problem, "normal", torch.Generator("cuda").manual_seed(seed))
    candidate = Candidate(mma, mma.default(problem, device))
    return build(GEMM_INT4, candidate, problem, GEMM_INT4.arguments(values), device), values


def anew(plan: Plan, values: tuple[Any, ...]) -> torch.Tensor:
    """What comes of preparing the weight again, from copies that nothing is known of."""
    y = plan(*[value.clone() if isinstance(value, torch.Tensor) else value for value in values])
    assert isinstance(y, torch.Tensor)
    return y


def test_weights_that_change_or_die_or_are_exchanged_are_prepared_again() -> None:
    plan, values = plan_and_values(16)
    a, rest = values[0], values[1:]
    before = anew(plan, values)
    for seed in range(2, 8):
        # the allocator hands out the memory of those that have just died
        del rest, values
        rest = plan_and_values(16, seed)[1][1:]
        values = (a, *rest)
        for _ in range(2):
            y = plan(*values)
            assert torch.equal(y, anew(plan, values))
        assert not torch.equal(y, before)
        values[1].bitwise_not_()
        assert torch.equal(plan(*values), anew(plan, values))
        values[1].data = values[1].bitwise_not()
        assert torch.equal(plan(*values), y)
        before = y


def test_a_capture_on_a_stream_that_has_read_a_weight_pins_it() -> None:
    forget_prepared()
    former = {id(entry) for entry in prepared._CACHE._entries.values()}
    plan, values = plan_and_values(1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            expected = plan(*values)
    stream.synchronize()
    entries = [entry for entry in prepared._CACHE._entries.values() if id(entry) not in former]
    assert [entry.captured for entry in entries] == [False, False]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        y = plan(*values)
    assert [entry.captured for entry in entries] == [True, True]
    forget_prepared()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, expected)


def test_a_captured_graph_reads_what_weights_changed_makes() -> None:
    forget_prepared()
    plan, values = plan_and_values(1)
    before = plan(*values).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = plan(*values)
    values[1].data.bitwise_not_()  # a write that torch does not count
    graph.replay()
    assert torch.equal(y, before)
    assert weights_changed(values[1]) >= 1
    graph.replay()
    expected = anew(plan, values)
    assert torch.equal(y, expected)
    assert torch.equal(plan(*values), expected)
    assert not torch.equal(y, before)


def test_threads_with_streams_and_weights_of_their_own_share_a_plan() -> None:
    plan, _ = plan_and_values(1)
    cases = [plan_and_values(1, seed)[1] for seed in range(4)]
    expected = [anew(plan, values) for values in cases]
    torch.cuda.synchronize()

    def work(number: int) -> bool:
        with torch.cuda.stream(torch.cuda.Stream()):
            found = [plan(*cases[(number + turn) % 4]) for turn in range(200)]
            torch.cuda.current_stream().synchronize()
        return all(torch.equal(y, expected[(number + turn) % 4]) for turn, y in enumerate(found))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
