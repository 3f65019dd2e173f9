"""cross_entropy's implementations: C++ in every configuration, Inductor's, and what Triton compiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from registry.contract import Op
from registry.contracts import CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD
from registry.correctness import numerics
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate, build
from registry.implementation import Implementation
from registry.problem import Problem, Value
from registry.space import Config
from registry_cpp.losses.cross_entropy import CppCrossEntropy, CppCrossEntropyBackward

from ..tiers import one_of_each
from .test_triton import H200, IMPLEMENTATIONS, default_variants, problem_of, signature

CPU = Device.of("cpu")
BOTH = [(CROSS_ENTROPY, CppCrossEntropy()), (CROSS_ENTROPY_BACKWARD, CppCrossEntropyBackward())]
EACH = pytest.mark.parametrize(("op", "implementation"), BOTH, ids=lambda one: one.name)


def check(op: Op, implementation: Implementation, config: Config, problem: Problem, kind: str) -> None:
    """The error rule of the op's contract, on one kind of inputs."""
    values = op.draw(problem, kind, torch.Generator().manual_seed(7))
    plan = build(op, Candidate(implementation, config), problem, op.arguments(values), CPU)
    verdict = numerics.judged(op, problem, plan(*values), values)
    assert verdict.ok, f"{problem} {kind} {dict(config)}: {verdict.message}"


@pytest.mark.parametrize(
    ("op", "implementation", "reduction", "weight"),
    # all reductions of the defaults are in tests/contracts/losses; each is compiled, with a weight and without at once
    one_of_each(
        [
            pytest.param(*both, reduction, weight, id=f"{both[0].name}-{reduction}-{weight}")
            for both in BOTH
            for reduction, weight in (("none", False), ("mean", True), ("none", True), ("mean", False))
        ],
        lambda op, implementation, reduction, weight: op.name,
    ),
)
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["one", "all"])
@pytest.mark.few(1)
def test_every_configuration_in_cpp_is_right(
    op: Op, implementation: Implementation, reduction: str, weight: bool, every: bool
) -> None:
    dims: dict[str, Value] = {"rows": 5, "cols": 16_411, "reduction": reduction, "weight": weight, "dtype": "bfloat16"}
    problem = op.problem_of(dims)
    space = implementation.space(problem, CPU)
    assert len(space) >= 8
    default = implementation.default(problem, CPU)
    far = max(space.configs, key=lambda config: sum(config[name] != default[name] for name in default))
    assert far != default
    for place, config in enumerate(space.configs if every else [far] * len(op.kinds)):
        check(op, implementation, config, problem, op.kinds[place % len(op.kinds)])


@pytest.mark.parametrize(
    ("op", "implementation", "dtype"),
    one_of_each(
        [pytest.param(*both, dtype, id=f"{both[0].name}-{dtype}") for both in BOTH for dtype in ("float32", "float16")],
        lambda op, implementation, dtype: op.name,
    ),
)
@pytest.mark.few(1)
def test_short_and_single_rows_in_cpp_are_right(op: Op, implementation: Implementation, dtype: str) -> None:
    for rows, cols in ((1, 1), (3, 7), (1, 9001)):
        problem = op.problem_of({"rows": rows, "cols": cols, "reduction": "sum", "weight": True, "dtype": dtype})
        for kind in op.kinds:
            check(op, implementation, implementation.default(problem, CPU), problem, kind)


@pytest.mark.parametrize(
    ("op", "reduction", "weight"),
    [
        # the gradient computes the same logarithms, and selects more
        pytest.param(CROSS_ENTROPY, "mean", False, marks=pytest.mark.thorough),
        (CROSS_ENTROPY_BACKWARD, "none", True),
    ],
)
@pytest.mark.thorough
def test_what_inductor_makes_is_right(catalog: Catalog, op: Op, reduction: str, weight: bool) -> None:
    dims: dict[str, Value] = {"rows": 5, "cols": 333, "reduction": reduction, "weight": weight}
    problem = op.problem_of({**dims, "dtype": "bfloat16"})
    compiled = catalog.implementation(op.name, "torch.compile")
    # another smoothing or ignored class compiles again
    check(op, compiled, {}, problem, "masked" if op is CROSS_ENTROPY else "outside")


VARIANTS: tuple[Mapping[str, Any], ...] = (
    {"reduction": "none", "weight": False}, {"reduction": "sum", "weight": True}, {"reduction": "mean", "weight": True},
)  # fmt: skip


@pytest.mark.parametrize(
    ("key", "dims"),
    # test_triton.py has the mean without a weight
    one_of_each(
        [
            pytest.param(key, dims, id=f"{key}-{dims['reduction']}-{dims['weight']}")
            for key in IMPLEMENTATIONS
            if key.startswith("cross_entropy")
            for dims in VARIANTS
        ],
        lambda key, dims: key,
    ),
)
@pytest.mark.few(1)
def test_triton_compiles_every_reduction_with_a_weight_and_without(key: str, dims: Mapping[str, Any]) -> None:
    op, implementation = key.partition(" ")[0], IMPLEMENTATIONS[key]
    cols = 50_257 if key.endswith("ragged") else 16_384 if key.endswith("split") else 4096
    problem = problem_of(op, {"rows": 16, "cols": cols, **dims})
    assert not list(implementation.unsupported(problem, H200))
    variants = default_variants(implementation, problem, H200)
    names = [variant.kernel.rpartition(":")[2] for variant in variants]
    assert ("sum_losses" in names) == (op == "cross_entropy" and dims["reduction"] != "none")
    assert ("cross_entropy_totals" in names) == (
        op != "cross_entropy" and (dims["weight"] or dims["reduction"] == "mean")
    )
    for variant in variants:
        assert implementation.compile(variant, H200.target).resources["spill_bytes"] == 0


@pytest.mark.parametrize("weight", [pytest.param(False, marks=pytest.mark.thorough), True])
@pytest.mark.thorough
def test_the_most_that_is_loaded_ahead_fits_in_shared_memory(weight: bool) -> None:
    implementation = IMPLEMENTATIONS["cross_entropy triton.online"]
    problem = problem_of("cross_entropy", {"rows": 16, "cols": 128256, "reduction": "none", "weight": weight})
    configs = implementation.space(problem, H200).configs
    config = max(configs, key=lambda config: (config["BLOCK"] * config["num_stages"], config["num_stages"]))
    assert config["num_stages"] > 1
    known = signature(problem, implementation, config, H200)
    (variant,) = implementation.variants(problem, config, H200, known)
    assert implementation.compile(variant, H200.target).resources["shared_bytes"] <= H200.shared_bytes


@pytest.mark.parametrize(
    ("cols", "dtype", "runs"), [(3, "float32", False), (5, "float32", True), (7, "bfloat16", False)]
)
def test_a_row_that_may_end_before_it_is_aligned_is_not_read_from_there_on(cols: int, dtype: str, runs: bool) -> None:
    dims: dict[str, Value] = {"rows": 5, "cols": cols, "reduction": "mean", "weight": False, "dtype": dtype}
    ragged = Catalog().implementation("cross_entropy", "triton.ragged")
    reasons = list(ragged.unsupported(CROSS_ENTROPY.problem_of(dims), H200))
    assert reasons == ([] if runs else [f"a row of {cols} {dtype} may end before the first multiple of 16 bytes"])
