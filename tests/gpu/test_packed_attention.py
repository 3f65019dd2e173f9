"""attention_varlen by wgmma on a GPU: every form, offsets that change or are wrong, neighbours that are not finite."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

import registry
from registry.contracts import ATTENTION_VARLEN
from registry.correctness.numerics import judged
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate, build
from registry.problem import Value
from registry.testing import check_implementation

from ..tiers import spread
from .replaying import replayed

pytestmark = pytest.mark.skipif(torch.cuda.get_device_capability()[0] != 9, reason="needs compute capability 9.0")

WGMMA = "cuda.wgmma"
PACKED: Mapping[str, Value] = {
    "sequences": 7, "heads": 8, "kv_heads": 2, "total_q": 2000, "total_k": 2000, "head_dim": 128, "causal": True,
    "softcap": False, "span": False, "lengths": "skewed", "dtype": "bfloat16",
}  # fmt: skip
FORMS: Mapping[str, Mapping[str, Value]] = {
    "causal": {},
    "whole": {"causal": False, "total_k": 3000},
    "behind other keys": {"total_q": 400, "total_k": 5000, "lengths": "uniform"},
    "more queries than keys": {"total_q": 900, "total_k": 300},
    "as many heads": {"kv_heads": 8, "head_dim": 64, "dtype": "float16"},
    "window": {"span": 50},
    "window of both sides": {"span": 50, "causal": False},
    "cap": {"softcap": True, "head_dim": 256},
    "many": {"sequences": 300, "total_q": 700, "total_k": 900},
    "one": {"sequences": 1, "total_q": 1, "total_k": 333},
    "odd heads": {"head_dim": 72, "kv_heads": 1},
}


@pytest.mark.parametrize("form", list(FORMS))
def test_every_form_is_right(catalog: Catalog, form: str) -> None:
    """Each kind of inputs, by some configurations, which run a second time without a difference."""
    implementation, device = catalog.implementation(ATTENTION_VARLEN.name, WGMMA), Device.of("cuda")
    problem = ATTENTION_VARLEN.problem_of({**PACKED, **FORMS[form]})
    assert not list(implementation.unsupported(problem, device))
    for config in spread(implementation.space(problem, device).configs, 4):
        for kind in ATTENTION_VARLEN.kinds:
            values = ATTENTION_VARLEN.draw(problem, kind, torch.Generator("cuda").manual_seed(0))
            candidate = Candidate(implementation, config)
            plan = build(ATTENTION_VARLEN, candidate, problem, ATTENTION_VARLEN.arguments(values), device)
            found = plan(*values)
            verdict = judged(ATTENTION_VARLEN, problem, found, values)
            assert verdict.ok, f"{kind}, {config}: {verdict.message}"
            for one, other in zip(found, plan(*values), strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_layouts_and_other_sizes_are_right(catalog: Catalog) -> None:
    implementation = catalog.implementation(ATTENTION_VARLEN.name, WGMMA)
    assert check_implementation(implementation, ATTENTION_VARLEN, problems=[{**PACKED}], device="cuda").ok


def test_a_replay_answers_for_other_offsets(catalog: Catalog) -> None:
    implementation = catalog.implementation(ATTENTION_VARLEN.name, WGMMA)
    verdict = replayed(ATTENTION_VARLEN, implementation, ATTENTION_VARLEN.problem_of({**PACKED, "lengths": "uniform"}))
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("name", [WGMMA, "triton.flash"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_what_is_not_finite_in_other_sequences_does_not_reach_one(name: str, head_dim: int) -> None:
    offsets = torch.tensor([0, 70, 770, 771, 2000], dtype=torch.int32, device="cuda")
    q, k, v = (torch.randn(2000, count, head_dim, device="cuda", dtype=torch.bfloat16) for count in (8, 2, 2))
    for x in (k, v):
        x[:70], x[770:] = torch.nan, torch.inf
    with registry.using(attention_varlen=name):
        out, lse = registry.call("attention_varlen", q, k, v, offsets, offsets, causal=True)
    one = torch.tensor([0, 700], dtype=torch.int32, device="cuda")
    with registry.using(attention_varlen="torch.native"):
        right, sums = registry.call("attention_varlen", q[70:770], k[70:770], v[70:770], one, one, causal=True)
    torch.testing.assert_close(out[70:770], right, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(lse[:, 70:770], sums, rtol=1e-3, atol=1e-3)


def test_wild_offsets_stay_within_the_tensors() -> None:
    values = ATTENTION_VARLEN.draw(
        ATTENTION_VARLEN.problem_of(PACKED), "normal", torch.Generator("cuda").manual_seed(0)
    )
    wild = torch.tensor([-9, 2**30, 5, 0, 2**31 - 1, 3, 700, -(2**31)], dtype=torch.int32, device="cuda")
    late = torch.tensor([900, 950, 1000, 1300, 1400, 1500, 1600, 2000], dtype=torch.int32, device="cuda")
    for offsets in (wild, late):
        with registry.using(attention_varlen=WGMMA):
            registry.call("attention_varlen", *values[:3], offsets, offsets, *values[5:])
        torch.cuda.synchronize()


def test_a_gradient_by_its_outputs_is_that_of_torch() -> None:
    offsets = torch.tensor([0, 300, 1000], dtype=torch.int32, device="cuda")
    heads = [torch.randn(1000, count, 64, device="cuda", dtype=torch.bfloat16) for count in (8, 2, 2)]
    found, expected = ([x.clone().requires_grad_() for x in heads] for _ in range(2))
    with registry.using(attention_varlen=WGMMA):
        registry.call("attention_varlen", *found, offsets, offsets, causal=True)[0].square().sum().backward()
    for begin, end in ((0, 300), (300, 1000)):
        q, k, v = (x[None, begin:end].double().transpose(1, 2) for x in expected)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out.square().sum().backward()
    for one, other in zip(found, expected, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        error = (one.grad.double() - other.grad.double()).norm() / other.grad.double().norm()
        assert error < 4 * torch.finfo(torch.bfloat16).eps
