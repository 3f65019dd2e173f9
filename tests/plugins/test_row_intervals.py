"""How many plans the int4 product needs for all of its row counts on a GPU. Nothing is compiled, loaded or launched."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import registry
from registry.artifact import Artifact, Variant
from registry.backends.cuda import CudaImplementation, nvrtc
from registry.backends.cuda import launch as cuda_launch
from registry.contracts import BOX
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.resolve import ranges
from registry.dispatch.resolve.candidates import Call, Plans, place_of
from registry.dispatch.resolve.ranges import Ranged, Ranges
from registry.dispatch.resolve.winners import Winners
from registry.problem import Problem
from registry.symbolic import MOST_ROWS

OP = next(op for op in BOX if op.name == "gemm_int4")
H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 * 2**30, 60 * 2**20, 227 * 1024, 65536)
N, K = 2112, 4224


@pytest.fixture(autouse=True)
def _an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its compiler and its driver are left out: what is asked of the row counts is not."""

    def compiled(self: CudaImplementation, variant: Variant, _target: object) -> Artifact:
        return Artifact(variant, "nowhere", {})

    monkeypatch.setattr(nvrtc, "missing", str)
    monkeypatch.setattr(CudaImplementation, "compile", compiled)
    monkeypatch.setattr(cuda_launch, "load", lambda path, device: cuda_launch.Kernel(1, None))
    monkeypatch.setattr(cuda_launch, "allow", lambda *given: None)
    monkeypatch.setattr(cuda_launch, "check_arguments", lambda *given: None)
    monkeypatch.setattr(cuda_launch, "_enqueue", lambda: None)
    monkeypatch.setattr(ranges, "Device", SimpleNamespace(of=lambda device: H200))


@pytest.fixture(scope="module")
def weight() -> tuple[Any, ...]:
    packed = registry.quantize(torch.randn(N, K, dtype=torch.bfloat16), group_size=128)
    return packed.qweight, packed.scales, packed.zeros, packed.bits, packed.group_size, K, packed.layout


def catalog_of(names: Sequence[str]) -> Catalog:
    """Those implementations alone; all that are installed when none is named."""
    every = Catalog()
    if not names:
        return every
    catalog = Catalog(entry_points=())
    for name in names:
        catalog.register(every.implementation("gemm_int4", name))
    return catalog


def answered(names: Sequence[str], weight: tuple[Any, ...], counts: Sequence[int]) -> list[Ranged | int]:
    """What calls of each row count leave behind where nothing there answers them: a row count, if that alone."""
    plans = Plans(OP, catalog_of(names), Winners)
    made = Ranges(OP, plans)
    known: list[Ranged | int] = []
    for rows in counts:
        values = (torch.empty(rows, K, dtype=torch.bfloat16), *weight)
        tensors = values[:4]
        if not any(one == rows if isinstance(one, int) else one.check_rows(*tensors) for one in known):
            arguments = OP.arguments(values)
            call = Call(OP.pose(arguments), arguments, H200, place_of(arguments))
            resolved = next(plans.candidates(call, None, 0))
            known.append(made.of(values, resolved) or rows)
    return known


def intervals(known: Sequence[Ranged | int]) -> list[tuple[int, int]]:
    """Sorted ends, equal ones for a row count alone."""
    return sorted((one, one) if isinstance(one, int) else (one.lo, one.hi) for one in known)


MMA = [(1, 4), (5, 8), (9, 16), (17, 32), (33, 64), (65, 96), (97, 128), (129, 160), (161, 192), (193, 224), (225, 256)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        # clusters from 1 to 4 blocks; tiles of 8 to 32 tokens, whose number says how busy the GPU is
        (["cuda.mma"], MMA),
        # it prefers itself up to 16 rows only
        (["torch.tinygemm"], [(1, 16), (17, MOST_ROWS)]),
        (["torch.native"], [(1, MOST_ROWS)]),
    ],
)
@pytest.mark.parametrize("first", [100, 1])
def test_a_few_plans_serve_every_row_count(
    names: list[str], expected: list[tuple[int, int]], first: int, weight: tuple[Any, ...]
) -> None:
    assert intervals(answered(names, weight, (first, *range(1, 257)))) == expected


def test_all_implementations_together_need_a_few_plans_for_decode(weight: tuple[Any, ...]) -> None:
    known = answered([], weight, (40, *range(64, 0, -1)))
    assert len(known) <= 8, intervals(known)
    used = [one.choice.candidate for one in known if isinstance(one, Ranged)]
    assert {candidate.implementation.name for candidate in used if candidate is not None} == {"cuda.mma"}


def test_an_interval_is_where_the_default_is_the_same(weight: tuple[Any, ...]) -> None:
    implementation = catalog_of(["cuda.mma"]).implementation("gemm_int4", "cuda.mma")
    for one in answered(["cuda.mma"], weight, range(1, 257, 16)):
        assert isinstance(one, Ranged)
        assert one.problem is not None
        assert one.choice.candidate is not None
        for rows in range(one.lo, one.hi + 1):
            problem = Problem(OP.name, {**one.problem.dims, "m": rows}, one.problem.traits)
            assert implementation.default(problem, H200) == one.choice.candidate.config, rows
