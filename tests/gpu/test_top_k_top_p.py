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
from registry.testing import check_frequencies

NAMES = ("torch.native", "triton.looped", "triton.split_rows")
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


@pytest.mark.parametrize(("name", "rows"), [("triton.looped", 300), ("triton.split_rows", 8)])
def test_the_same_tokens_each_time(name: str, rows: int) -> None:
    values = drawn(rows=rows, cols=151936)
    with registry.using(top_k_top_p_sampling=name):
        first = registry.call(OP.name, *values)
        for _ in range(5):
            assert torch.equal(registry.call(OP.name, *values), first)


@pytest.mark.parametrize("filters", [(50, None), (None, 0.9), (50, 0.9), (None, None)])
def test_numbers_stand_for_all_rows(filters: tuple[Any, Any]) -> None:
    logits, uniform, _, _ = drawn(cols=1000)
    with registry.using(top_k_top_p_sampling="triton.looped"):
        found = registry.call(OP.name, logits, uniform, *filters)
    values, _ = OP.flatten(logits, uniform, *filters)  # type: ignore[misc]
    check(found, values)
