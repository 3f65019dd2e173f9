"""registry_cublaslt on a GPU: every form, every algorithm of one, replayed graphs, and other threads' pointers."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import registry
from registry.correctness.numerics import judged
from registry.device import Device
from registry.dispatch.plans.plan import Candidate, Plan, build
from registry.implementation import Implementation
from registry.problem import Problem, Value
from registry.space import Config
from registry.testing import check_implementation
from registry_cublaslt.form import MatmulForm
from registry_cublaslt.plans import algorithms, chosen
from registry_cublaslt.products import LtFloat8, LtInt8, LtLinear

from .replaying import replayed

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
pytest.importorskip("nvmath")

MEBIBYTE = 1 << 20


def linear(m: int, n: int, k: int, **more: Value) -> dict[str, Value]:
    return {"m": m, "n": n, "k": k, "dtype": "bfloat16", "bias": False, **more}


def scaled(m: int, n: int, k: int, **more: Value) -> dict[str, Value]:
    given: dict[str, Value] = {"scales": "row", "bias": False, "out_dtype": "bfloat16", "dtype": "float8_e4m3fn"}
    return {"m": m, "n": n, "k": k, **given, **more}


PRODUCTS: list[tuple[Implementation, list[dict[str, Value]]]] = [
    (LtLinear(), [linear(m, n, k, bias=m > 1) for m, n, k in ((1, 512, 1024), (17, 264, 520), (300, 1024, 4096))]),
    (LtLinear(), [linear(33, 256, 512, dtype=dtype, bias=dtype == "float32") for dtype in ("float16", "float32")]),
    (LtLinear(), [linear(5, 257, 300), linear(64, 1000, 4096, bias=True, dtype="float16")]),
    (LtFloat8(), [scaled(m, 256, 512, scales="tensor", bias=m > 1) for m in (1, 17, 300)]),
    (LtFloat8(), [scaled(17, 256, 512, scales="tensor", out_dtype=out) for out in ("float16", "float32")]),
    (LtFloat8(), [scaled(m, n, k, bias=m > 1) for m, n, k in ((1, 512, 1024), (17, 256, 512), (300, 1024, 4096))]),
    (LtFloat8(), [scaled(m, n, k, scales="block") for m, n, k in ((4, 256, 512), (64, 1024, 2048))]),
    (LtInt8(), [scaled(17, 256, 512, dtype="int8", bias=True), scaled(300, 1024, 4096, dtype="int8", scales="tensor")]),
    (LtInt8(), [scaled(64, 256, 512, dtype="int8", out_dtype=out, bias=True) for out in ("float16", "float32")]),
]


@pytest.mark.parametrize("place", range(len(PRODUCTS)))
def test_every_form_is_right(place: int) -> None:
    implementation, problems = PRODUCTS[place]
    op, device = registry.ops()[implementation.op], Device.of("cuda")
    if reasons := [*implementation.unsupported(op.problem_of(problems[0]), device)]:
        pytest.skip(reasons[0])
    assert check_implementation(implementation, op, problems=problems, device=device).checked


def planned(
    implementation: Implementation, dims: dict[str, Value], config: Config
) -> tuple[Plan, Problem, tuple[Any, ...]]:
    op, device = registry.ops()[implementation.op], Device.of("cuda")
    problem = op.problem_of(dims)
    values = op.inputs(problem, "normal", torch.Generator("cuda").manual_seed(1))
    return build(op, Candidate(implementation, config), problem, op.arguments(values), device), problem, values


@pytest.mark.parametrize("workspace_mib", [0, 32])
@pytest.mark.parametrize(
    ("implementation", "dims"),
    [(LtLinear(), linear(32, 4096, 14336)), (LtFloat8(), scaled(32, 4096, 4096, scales="tensor"))],
    ids=["bfloat16", "float8"],
)
def test_every_algorithm_of_the_list_is_right(
    implementation: Implementation, dims: dict[str, Value], workspace_mib: int
) -> None:
    op = registry.ops()[implementation.op]
    found = algorithms(MatmulForm.of(op.problem_of(dims)), workspace_mib * MEBIBYTE, torch.cuda.current_device())
    assert found or workspace_mib
    assert len({one.data.array.tobytes() for one in found}) == len(found)
    assert all((one.workspace > 0) == (workspace_mib > 0) for one in found)
    for place in range(min(len(found), 12)):
        plan, problem, values = planned(implementation, dims, {"algorithm": place, "workspace_mib": workspace_mib})
        verdict = judged(op, problem, plan(*values), values)
        assert verdict.ok, f"algorithm {place}: {verdict.message}"


@pytest.mark.parametrize("place", [0, 5, 7])
def test_a_graph_follows_its_inputs(place: int) -> None:
    implementation, problems = PRODUCTS[place]
    op, device = registry.ops()[implementation.op], Device.of("cuda")
    problem = op.problem_of(problems[-1])
    if reasons := [*implementation.unsupported(problem, device)]:
        pytest.skip(reasons[0])
    verdict = replayed(op, implementation, problem)
    assert verdict.ok, verdict.message


def test_a_place_past_the_list_is_an_error_that_says_how_long_it_is() -> None:
    form = MatmulForm.of(registry.ops()["linear"].problem_of(linear(32, 256, 512)))
    with pytest.raises(registry.UnsupportedError, match="algorithms without workspace for this product, not 65"):
        chosen(form, 64, 0, torch.cuda.current_device())


def test_threads_with_biases_of_their_own_get_their_own_sums() -> None:
    plan, _, (x, weight, _) = planned(LtLinear(), linear(64, 512, 256, bias=True), {"algorithm": 0, "workspace_mib": 0})
    biases = [torch.full((512,), float(number), device="cuda", dtype=torch.bfloat16) for number in range(8)]
    expected = torch.nn.functional.linear(x.float(), weight.float())
    faults: list[float] = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(200):
                y = plan(x, weight, biases[number])
            torch.cuda.current_stream().synchronize()
            faults.append(float((y.float() - expected - number).abs().max()))

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(faults) == 8
    assert max(faults) < 0.1
