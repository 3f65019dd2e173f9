"""FlexAttention and torch's FlashAttention of packed sequences on a GPU: every form, captured graphs, the tuner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

import registry
from registry.contracts import ATTENTION, ATTENTION_VARLEN
from registry.correctness.numerics import judged
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate, build
from registry.problem import Value
from registry.testing import check_implementation
from registry_torch.attention import flex

PLAIN: Mapping[str, Value] = {
    "batch": 2, "heads": 8, "kv_heads": 2, "q_len": 333, "kv_len": 333, "head_dim": 128, "causal": True,
    "mask": "none", "softcap": False, "span": False, "dtype": "bfloat16",
}  # fmt: skip
FORMS: Mapping[str, Mapping[str, Value]] = {
    "causal": {},
    "blocks of whole lengths": {"q_len": 512, "kv_len": 512},
    "whole": {"causal": False, "kv_len": 512},
    "as many heads": {"kv_heads": 8, "head_dim": 64, "dtype": "float16"},
    "behind other keys": {"q_len": 77, "kv_len": 700},
    "more queries than keys": {"q_len": 300, "kv_len": 100},
    "window": {"span": 50, "q_len": 600, "kv_len": 600},
    "window of both sides": {"span": 50, "causal": False},
    "cap": {"softcap": True, "head_dim": 256},
    "mask": {"mask": "bool", "causal": False},
    "causal bias": {"mask": "additive"},
    "float32": {"dtype": "float32", "head_dim": 64},
    "float32 and a bias": {"dtype": "float32", "head_dim": 64, "mask": "additive"},
    "one query": {"q_len": 1, "kv_len": 1000},
    "odd heads": {"head_dim": 72},
}
PACKED: Mapping[str, Value] = {
    "sequences": 7, "heads": 8, "kv_heads": 2, "total_q": 900, "total_k": 1300, "head_dim": 128, "causal": True,
    "softcap": False, "span": False, "lengths": "skewed", "dtype": "bfloat16",
}  # fmt: skip
PACKED_FORMS: Mapping[str, Mapping[str, Value]] = {
    "causal": {},
    "whole": {"causal": False},
    "window": {"span": 50},
    "window of both sides": {"span": 50, "causal": False},
    "a query, and sequences without": {"total_q": 3},
    "short heads": {"head_dim": 64, "kv_heads": 8, "dtype": "float16"},
}
VARLEN = ("torch.flash_varlen", "torch.flash_varlen_sized")


def _is_right(catalog: Catalog, op: Any, name: str, dims: Mapping[str, Value]) -> None:
    implementation, device = catalog.implementation(op.name, name), Device.of("cuda")
    problem = op.problem_of(dims)
    assert not list(implementation.unsupported(problem, device))
    candidate = Candidate(implementation, implementation.default(problem, device))
    for kind in op.kinds:
        values = op.draw(problem, kind, torch.Generator("cuda").manual_seed(0))
        plan = build(op, candidate, problem, op.arguments(values), device)
        verdict = judged(op, problem, plan(*values), values)
        assert verdict.ok, f"{kind}: {verdict.message}"


@pytest.mark.parametrize("form", list(FORMS))
def test_every_form_of_flex_attention_is_right(catalog: Catalog, form: str) -> None:
    _is_right(catalog, ATTENTION, "torch.flex_attention", {**PLAIN, **FORMS[form]})


@pytest.mark.parametrize("form", ["causal", "window of both sides", "mask", "cap"])
def test_what_torch_compiles_of_the_formula_is_right(catalog: Catalog, form: str) -> None:
    _is_right(catalog, ATTENTION, "torch.compile", {**PLAIN, **FORMS[form]})


@pytest.mark.parametrize("form", list(PACKED_FORMS))
@pytest.mark.parametrize("name", VARLEN)
def test_every_form_of_packed_sequences_is_right(catalog: Catalog, name: str, form: str) -> None:
    _is_right(catalog, ATTENTION_VARLEN, name, {**PACKED, **PACKED_FORMS[form]})


@pytest.mark.parametrize("name", VARLEN)
def test_layouts_and_other_sizes_of_packed_sequences_are_right(catalog: Catalog, name: str) -> None:
    implementation = catalog.implementation("attention_varlen", name)
    assert check_implementation(implementation, ATTENTION_VARLEN, problems=[{**PACKED}], device="cuda").ok


def test_wild_offsets_stay_within_the_tensors(catalog: Catalog) -> None:
    values = ATTENTION_VARLEN.draw(
        ATTENTION_VARLEN.problem_of(PACKED), "normal", torch.Generator("cuda").manual_seed(0)
    )
    wild = torch.tensor([-9, 2**30, 5, 0, 2**31 - 1, 3, 700, -(2**31)], dtype=torch.int32, device="cuda")
    for name in VARLEN:
        with registry.using(attention_varlen=name):
            registry.call("attention_varlen", *values[:3], wild, wild, *values[5:])
    torch.cuda.synchronize()


def test_a_captured_graph_keeps_the_blocks_of_flex_attention(catalog: Catalog) -> None:
    implementation, device = catalog.implementation("attention", "torch.flex_attention"), Device.of("cuda")
    problem = ATTENTION.problem_of({**PLAIN, "q_len": 640, "kv_len": 640})
    values = ATTENTION.draw(problem, "normal", torch.Generator("cuda").manual_seed(0))
    plan = build(ATTENTION, Candidate(implementation, {}), problem, ATTENTION.arguments(values), device)
    plan(*values)
    torch.cuda.synchronize()
    graph, before = torch.cuda.CUDAGraph(), len(flex._KEPT)
    with torch.cuda.graph(graph):
        found = plan(*values)
    blocks = list(flex._KEPT.values())
    assert len(blocks) > before
    graph.replay()
    torch.cuda.synchronize()
    verdict = judged(ATTENTION, problem, found, values)
    assert verdict.ok, verdict.message


@pytest.mark.parametrize(
    ("op", "dims", "names"),
    [
        ("attention", {**PLAIN, "q_len": 512, "kv_len": 512}, ["torch.flex_attention", "torch.native"]),
        ("attention_varlen", PACKED, [*VARLEN, "torch.native"]),
    ],
    ids=["flex", "varlen"],
)
def test_the_tuner_measures_them(op: str, dims: Mapping[str, Value], names: list[str], tmp_path: Any) -> None:
    (found,) = registry.tune(op, [dims], implementations=names, budget=20.0, database=tmp_path / "own.sqlite")
    assert found.problem.op == op
