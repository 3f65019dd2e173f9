"""fused_linear_cross_entropy's implementations: chunks in every configuration, Inductor's, and what cannot run."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from registry.backends.linear_products import add_product
from registry.contract import Op
from registry.contracts import FUSED_LINEAR_CROSS_ENTROPY, FUSED_LINEAR_CROSS_ENTROPY_BACKWARD
from registry.correctness import numerics
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate, build
from registry.implementation import Implementation
from registry.problem import Problem, Value
from registry.space import Config

from ..tiers import one_of_each
from .test_triton import H200, IMPLEMENTATIONS, LINEAR_LOSS, problem_of

CPU = Device.of("cpu")
BOTH = (FUSED_LINEAR_CROSS_ENTROPY, FUSED_LINEAR_CROSS_ENTROPY_BACKWARD)
EACH = pytest.mark.parametrize("op", BOTH, ids=lambda op: op.name)


def check(op: Op, implementation: Implementation, config: Config, problem: Problem, kind: str) -> None:
    """The error rule of the op's contract, on one kind of inputs."""
    values = op.draw(problem, kind, torch.Generator().manual_seed(7))
    plan = build(op, Candidate(implementation, config), problem, op.arguments(values), CPU)
    verdict = numerics.judged(op, problem, plan(*values), values)
    assert verdict.ok, f"{problem} {kind} {dict(config)}: {verdict.message}"


@EACH
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.few(2)
def test_chunks_are_right_where_several_are_needed(op: Op, dtype: str, catalog: Catalog) -> None:
    chunked = catalog.implementation(op.name, "torch.chunked")
    for (place, kind), chunk in itertools.product(enumerate(op.kinds), (16, 32)):
        reduction = ("none", "sum", "mean")[place % 3]
        dims: dict[str, Value] = {"rows": 75, "cols": 101, "k": 9, "reduction": reduction, "bias": place % 2 == 0}
        check(op, chunked, {"CHUNK": chunk}, op.problem_of({**dims, "dtype": dtype}), kind)


@EACH
@pytest.mark.parametrize("name", ["torch.native", "torch.chunked"])
@pytest.mark.few(2)
def test_sums_of_many_rows_are_right(op: Op, name: str, catalog: Catalog) -> None:
    dims: dict[str, Value] = {"rows": 600, "cols": 500, "k": 64, "reduction": "mean", "bias": False}
    problem, one = op.problem_of({**dims, "dtype": "float32"}), catalog.implementation(op.name, name)
    for kind in ("smoothed", "spike_last", "constant"):
        check(op, one, one.default(problem, CPU), problem, kind)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.few(1)
def test_gradients_near_the_least_number_are_right(dtype: str, catalog: Catalog) -> None:
    """One row of outliers: most of the probabilities are below 1e-20, some of them subnormal."""
    op = FUSED_LINEAR_CROSS_ENTROPY_BACKWARD
    dims: dict[str, Value] = {"rows": 1, "cols": 20_000, "k": 64, "reduction": "mean", "bias": False, "dtype": dtype}
    for name in ("torch.native", "torch.chunked"):
        one, problem = catalog.implementation(op.name, name), op.problem_of(dims)
        check(op, one, one.default(problem, CPU), problem, "outliers")


@EACH
def test_chunks_of_a_large_vocabulary_take_a_gibibyte_at_most(op: Op, catalog: Catalog) -> None:
    for cols in (32, 32000, 262144):
        problem = op.problem_of({"rows": 8192, "cols": cols, "k": 64, "dtype": "bfloat16", **LINEAR_LOSS})
        for name in ("torch.chunked", "triton.chunked"):
            implementation = catalog.implementation(op.name, name)
            assert implementation.default(problem, H200) in implementation.space(problem, H200)
            for config in implementation.space(problem, H200):
                logits = implementation.scratch(problem, config, H200)["logits"]
                assert logits.nbytes <= 2**30
                assert logits.shape[1] % 16 == 0


def test_rows_are_split_evenly() -> None:
    implementation = IMPLEMENTATIONS["fused_linear_cross_entropy triton.chunked"]
    held = {}
    for rows in (1, 512, 513, 1500, 8192):
        problem = problem_of("fused_linear_cross_entropy", {"rows": rows, "cols": 320, "k": 64, **LINEAR_LOSS})
        config = {"CHUNK": 512, "BLOCK": 8192, "num_warps": 16}
        held[rows] = implementation.scratch(problem, config, H200)["logits"].shape[0]
    assert held == {1: 1, 512: 512, 513: 272, 1500: 512, 8192: 512}


@EACH
def test_all_logits_are_refused_where_they_take_much_of_the_memory(op: Op, catalog: Catalog) -> None:
    small = replace(H200, memory_bytes=16 * 2**30)
    problem = op.problem_of({"rows": 8192, "cols": 128256, "k": 64, "dtype": "bfloat16", **LINEAR_LOSS})
    for name in ("torch.native", "torch.compile"):
        implementation = catalog.implementation(op.name, name)
        (reason,) = implementation.unsupported(problem, small)
        assert reason == "all logits, 8192 x 128256, take 5.9 GiB, more than 1/64 of the device's 16"
        assert "1/64 of the device's 141" in next(iter(implementation.unsupported(problem, H200)))
        assert not list(implementation.unsupported(op.problem_of({**problem.dims, "rows": 2048}), H200))
    assert not list(catalog.implementation(op.name, "torch.chunked").unsupported(problem, small))


@pytest.mark.parametrize(
    ("op", "kind"),
    one_of_each([(op, kind) for op in BOTH for kind in ("masked", "outside", "ignored", "smoothed")]),
)
@pytest.mark.thorough
def test_what_inductor_makes_is_right(op: Op, kind: str, catalog: Catalog) -> None:
    dims: dict[str, Value] = {"rows": 5, "cols": 333, "k": 16, "reduction": "mean", "bias": True, "dtype": "bfloat16"}
    check(op, catalog.implementation(op.name, "torch.compile"), {}, op.problem_of(dims), kind)


def test_a_product_of_halves_is_added_in_float32() -> None:
    a, b = torch.randn(5, 40).bfloat16(), torch.randn(40, 7).bfloat16()
    total = torch.full((5, 7), 1000.0)
    assert add_product(total, a, b) is total
    torch.testing.assert_close(total.double(), 1000.0 + a.double() @ b.double(), atol=1e-3, rtol=0.0)
    wide = torch.zeros(5, 7, dtype=torch.float64)
    torch.testing.assert_close(add_product(wide, a.double(), b.double()), a.double() @ b.double())
