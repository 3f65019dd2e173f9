"""fused_linear_cross_entropy_gradients' implementations: chunks, their sums, Inductor's, and what they hold."""

from __future__ import annotations

import itertools

import pytest
import torch

from registry.backends.linear_gradients import LinearGradients
from registry.contracts import FUSED_LINEAR_CROSS_ENTROPY_GRADIENTS
from registry.correctness import numerics
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate, build
from registry.problem import Problem, Value
from registry.space import Config

from ..tiers import one_of_each
from .test_triton import H200

CPU = Device.of("cpu")
OP = FUSED_LINEAR_CROSS_ENTROPY_GRADIENTS


def problem_of(rows: int, cols: int, k: int, dtype: str, reduction: str = "mean", *, bias: bool = False) -> Problem:
    dims: dict[str, Value] = {"rows": rows, "cols": cols, "k": k, "reduction": reduction, "bias": bias, "dtype": dtype}
    return OP.problem_of(dims)


def check(catalog: Catalog, name: str, config: Config, problem: Problem, kind: str) -> None:
    """The error rule of the op's contract, on one kind of inputs."""
    values = OP.draw(problem, kind, torch.Generator().manual_seed(7))
    candidate = Candidate(catalog.implementation(OP.name, name), config)
    verdict = numerics.judged(OP, problem, build(OP, candidate, problem, OP.arguments(values), CPU)(*values), values)
    assert verdict.ok, f"{problem} {kind} {dict(config)}: {verdict.message}"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.few(1)
def test_chunks_are_right_where_several_are_needed(dtype: str, catalog: Catalog) -> None:
    for (place, kind), chunk in itertools.product(enumerate(OP.kinds), (16, 32)):
        problem = problem_of(75, 101, 9, dtype, ("sum", "mean")[place % 2], bias=place % 3 == 0)
        check(catalog, "torch.chunked", {"CHUNK": chunk}, problem, kind)


def test_sums_of_large_chunks_in_the_dtype_are_right(catalog: Catalog) -> None:
    problem = problem_of(4500, 70, 16, "bfloat16", bias=True)
    scratch = catalog.implementation(OP.name, "torch.chunked").scratch(problem, {"CHUNK": 1024}, CPU)
    assert "weight_total" not in scratch
    for kind in ("normal", "spike_last", "constant", "smoothed"):
        check(catalog, "torch.chunked", {"CHUNK": 1024}, problem, kind)


def test_small_and_many_chunks_of_halves_are_summed_in_float32() -> None:
    for rows, chunk, dtype, wide in (
        (8192, 2048, "bfloat16", False),
        (1000, 1000, "float16", False),
        (8192, 512, "bfloat16", False),
        (8192, 256, "bfloat16", True),
        (65536, 2048, "bfloat16", True),
        (8192, 256, "float32", False),
    ):
        problem = problem_of(rows, 32, 8, dtype)
        assert LinearGradients.sums_in_float32(problem, chunk) is wide
        assert ("weight_total" in LinearGradients.scratch(problem, chunk)) is wide


def test_a_step_of_a_large_vocabulary_takes_half_a_gibibyte_beside_its_gradients(catalog: Catalog) -> None:
    problem = problem_of(8192, 128256, 2048, "bfloat16")
    for name in ("torch.chunked", "triton.chunked"):
        implementation = catalog.implementation(OP.name, name)
        default = implementation.default(problem, H200)
        assert default in implementation.space(problem, H200)
        for config in implementation.space(problem, H200):
            assert implementation.scratch(problem, config, H200)["logits"].nbytes <= 2**29
    held = sum(spec.nbytes for spec in implementation.scratch(problem, default, H200).values())
    assert held < 520 * 2**20
    assert OP.name in {one.op for one in catalog.implementations(OP.name)}


def test_no_number_of_rows_doubles_a_large_weights_gradient(catalog: Catalog) -> None:
    """Chunks that are alike are smaller than the most rows of a chunk."""
    implementation = catalog.implementation(OP.name, "triton.chunked")
    for rows in (1, 1000, 1040, 1500, 2048, 4097, 8191, 16384):
        problem = problem_of(rows, 262144, 64, "bfloat16")
        assert "weight_total" not in implementation.scratch(problem, implementation.default(problem, H200), H200)


def test_all_logits_are_refused_where_they_take_more_than_a_quarter_of_the_memory(catalog: Catalog) -> None:
    problem = problem_of(32768, 262144, 64, "bfloat16")
    for name in ("torch.native", "torch.compile"):
        (reason,) = catalog.implementation(OP.name, name).unsupported(problem, H200)
        assert reason.startswith("all logits, 32768 x 262144, take 48.0 GiB")
    assert not list(catalog.implementation(OP.name, "torch.chunked").unsupported(problem, H200))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", one_of_each(["ignored", "masked", "outside", "smoothed"], lambda kind: 0))
def test_what_inductor_makes_is_right(kind: str, catalog: Catalog) -> None:
    check(catalog, "torch.compile", {}, problem_of(5, 333, 16, "bfloat16", bias=True), kind)
