"""top_k_top_p_sampling on a GPU: filters of all forms, replays with new numbers, frequencies, and long rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

import registry
from registry.contracts import TOP_K_TOP_P_SAMPLING as OP
from registry.contracts.sampling.kept_tokens import thresholds
from registry.correctness.numerics import compare, own_error, reference64
from registry.device import Device
from registry.dispatch.plans.plan import Candidate, build
from registry.testing import check_frequencies

NAMES = ("torch.native", "triton.looped", "triton.split_rows", "cuda.cluster")
DIMS: dict[str, Any] = {"rows": 16, "cols": 32000, "top_k": True, "top_p": True, "dtype": "float32"}


def drawn(kind: str = "normal", **dims: Any) -> tuple[Any, ...]:
    problem = OP.problem_of({**DIMS, **dims})
    return OP.inputs(problem, kind, torch.Generator("cuda").manual_seed(3))


def check(found: torch.Tensor, values: tuple[Any, ...]) -> None:
    problem = OP.pose(OP.arguments(values))
    reference = reference64(OP, values)
    verdict = compare(OP, problem, (found,), reference, own_error(OP, problem, values, reference), values)
    assert verdict.ok, verdict


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", OP.kinds)
def test_every_kind_of_inputs(name: str, kind: str) -> None:
    forms: list[dict[str, Any]] = [{}, {"top_p": False, "dtype": "float16"}, {"cols": 50257, "dtype": "bfloat16"}]
    if name != "triton.split_rows":
        forms.append({"top_k": False, "cols": 50257})
    for more in forms:
        values = drawn(kind, **more)
        with registry.using(top_k_top_p_sampling=name):
            check(registry.call(OP.name, *values), values)


@pytest.mark.parametrize("name", NAMES)
def test_a_captured_graph_follows_logits_numbers_and_filters(name: str) -> None:
    values = drawn()
    with registry.using(top_k_top_p_sampling=name):
        registry.call(OP.name, *values)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = registry.call(OP.name, *values)
    for seed in range(5):
        torch.manual_seed(seed)
        values[0].normal_(0.0, 3.0)
        values[1].uniform_()
        values[2].random_(1, 2000)
        values[3].uniform_(0.01, 1.0)
        graph.replay()
        check(found, values)


@pytest.mark.parametrize("name", NAMES)
def test_tokens_come_as_often_as_their_probabilities(name: str) -> None:
    # few tokens that are kept, at places all over a row that is long enough to be split
    row = torch.full((4200,), -4.0, device="cuda")
    row[:: 4200 // 39] = torch.randn(len(row[:: 4200 // 39]), device="cuda") * 1.5
    logits = row.expand(128, -1).contiguous()
    with registry.using(top_k_top_p_sampling=name):
        samples = [registry.call(OP.name, logits, torch.rand(128, device="cuda"), 12, 0.8) for _ in range(500)]
    found = torch.cat(samples)
    one = torch.tensor([12], device="cuda"), torch.tensor([0.8], device="cuda")
    least = thresholds(row[None].double(), *one)
    kept = row.double().masked_fill(row.double() < least[0], -torch.inf).softmax(0)
    assert (kept[found.long()] > 0).all()
    some = kept.nonzero()[:, 0]
    check_frequencies(torch.searchsorted(some, found.long()), kept[some])


@pytest.mark.parametrize(
    ("name", "rows"), [("triton.looped", 300), ("triton.split_rows", 8), ("cuda.cluster", 1), ("cuda.cluster", 300)]
)
def test_the_same_tokens_each_time(name: str, rows: int) -> None:
    values = drawn(rows=rows, cols=151936)
    with registry.using(top_k_top_p_sampling=name):
        first = registry.call(OP.name, *values)
        for _ in range(5):
            assert torch.equal(registry.call(OP.name, *values), first)


@pytest.mark.parametrize("filters", [(50, None), (None, 0.9), (50, 0.9), (None, None)])
def test_numbers_stand_for_all_rows(filters: tuple[Any, Any]) -> None:
    logits, uniform, _, _ = drawn(cols=1000)
    for name in ("triton.looped", "cuda.cluster"):
        with registry.using(top_k_top_p_sampling=name):
            found = registry.call(OP.name, logits, uniform, *filters)
        values, _ = OP.flatten(logits, uniform, *filters)  # type: ignore[misc]
        check(found, values)


def in_cluster(values: tuple[Any, ...], **config: int) -> torch.Tensor:
    """Tokens drawn by cuda.cluster in one configuration."""
    problem, device = OP.pose(OP.arguments(values)), Device.best()
    (each,) = (each for each in registry.implementations(OP.name) if each.name == "cuda.cluster")
    assert config in each.space(problem, device)
    found = build(OP, Candidate(each, config), problem, OP.arguments(values), device)(*values)
    assert isinstance(found, torch.Tensor)
    return found


@pytest.mark.parametrize("filters", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize(("cluster", "threads"), [(1, 64), (2, 256), (4, 512), (8, 1024), (16, 256), (16, 1024)])
def test_rows_of_many_blocks(cluster: int, threads: int, filters: tuple[bool, bool]) -> None:
    sizes = {1: (4096, 1000), 2: (300, 32000)}
    rows, cols = sizes.get(cluster, (40, 128256 if cluster > 4 or threads > 512 else 50257))
    for dtype, kind in (("float32", "normal"), ("bfloat16", "ties"), ("float16", "edges"), ("float32", "special")):
        dims = {"rows": rows, "cols": cols, "top_k": filters[0], "top_p": filters[1], "dtype": dtype}
        for bins in (256, 1024):
            values = drawn(kind, **dims)
            first = in_cluster(values, cluster=cluster, threads=threads, bins=bins)
            check(first, values)
            for _ in range(3):
                assert torch.equal(in_cluster(values, cluster=cluster, threads=threads, bins=bins), first)


@pytest.mark.parametrize("cols", [1, 7, 1000, 50257, 151936, 262144])
def test_a_view_that_is_not_aligned(cols: int) -> None:
    for dtype in ("float32", "bfloat16"):
        logits, *rest = drawn(rows=5, cols=cols, dtype=dtype)
        moved = torch.cat([logits.new_zeros(1), logits.flatten()])[1:].view_as(logits)
        with registry.using(top_k_top_p_sampling="cuda.cluster"):
            check(registry.call(OP.name, moved, *rest), (moved, *rest))


def test_long_lists_full_bins_and_ties() -> None:
    cols = 128256
    normal, place = torch.randn(cols, device="cuda"), torch.arange(cols, device="cuda")
    kinds = (
        normal * 0.01,  # all in one bin
        1000.0 + normal * 1e-3,  # few keys, each with many equal logits
        torch.where(place % 3 == 0, 1.0, 1.0 + 2.0**-23),  # neighbouring keys
        normal * 3e4,  # nearly all without a weight
        -place / cols,  # all are kept
        torch.where(place == 0, 20.0, normal * 1e-7 - 2.0),  # a tail of much mass in one bin
    )
    filters = [(k, p) for k in (1, 300, 40000, cols) for p in (1e-6, 0.3, 0.9999, 1.0)]
    logits = torch.stack(kinds).repeat_interleave(len(filters), 0)
    top_k = torch.tensor([k for k, _ in filters] * len(kinds), dtype=torch.int32, device="cuda")
    top_p = torch.tensor([p for _, p in filters] * len(kinds), device="cuda")
    values = (logits, torch.rand(len(logits), device="cuda"), top_k, top_p)
    for cluster in (4, 8, 16):
        check(in_cluster(values, cluster=cluster, threads=512, bins=512), values)
