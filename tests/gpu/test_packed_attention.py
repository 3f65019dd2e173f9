"""Packed attention and its gradients by wgmma on a GPU: every form, other and wrong offsets, neighbours not finite."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

import registry
from registry.contract import Op
from registry.contracts import ATTENTION_VARLEN, ATTENTION_VARLEN_BACKWARD
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
of_each_op = pytest.mark.parametrize("op", [ATTENTION_VARLEN, ATTENTION_VARLEN_BACKWARD], ids=lambda op: op.name)
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
    "cap and window": {"softcap": True, "span": 50, "head_dim": 64},
    "many": {"sequences": 300, "total_q": 700, "total_k": 900},
    "one": {"sequences": 1, "total_q": 1, "total_k": 333},
    "odd heads": {"head_dim": 72, "kv_heads": 1},
    # compute-sanitizer takes seconds for it
    "few": {"sequences": 3, "heads": 2, "kv_heads": 1, "total_q": 100, "total_k": 150, "head_dim": 64},
}


@pytest.mark.parametrize("form", list(FORMS))
@of_each_op
def test_every_form_is_right(catalog: Catalog, op: Op, form: str) -> None:
    """Each kind of inputs, by some configurations, which run a second time without a difference."""
    implementation, device = catalog.implementation(op.name, WGMMA), Device.of("cuda")
    problem = op.problem_of({**PACKED, **FORMS[form]})
    assert not list(implementation.unsupported(problem, device))
    for config in spread(implementation.space(problem, device).configs, 4):
        for kind in op.kinds:
            values = op.draw(problem, kind, torch.Generator("cuda").manual_seed(0))
            plan = build(op, Candidate(implementation, config), problem, op.arguments(values), device)
            found = plan(*values)
            verdict = judged(op, problem, found, values)
            assert verdict.ok, f"{kind}, {config}: {verdict.message}"
            for one, other in zip(found, plan(*values), strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@of_each_op
def test_layouts_and_other_sizes_are_right(catalog: Catalog, op: Op) -> None:
    implementation = catalog.implementation(op.name, WGMMA)
    assert check_implementation(implementation, op, problems=[{**PACKED}], device="cuda").ok


@of_each_op
def test_a_replay_answers_for_other_offsets(catalog: Catalog, op: Op) -> None:
    implementation = catalog.implementation(op.name, WGMMA)
    verdict = replayed(op, implementation, op.problem_of({**PACKED, "lengths": "uniform"}))
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


@pytest.mark.parametrize("name", [WGMMA, "triton.flash"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_what_is_not_finite_in_other_sequences_does_not_reach_gradients(name: str, head_dim: int) -> None:
    offsets = torch.tensor([0, 70, 770, 771, 2000], dtype=torch.int32, device="cuda")
    heads = (torch.randn(2000, count, head_dim, device="cuda", dtype=torch.bfloat16) for count in (8, 8, 2, 2))
    grad_out, q, k, v = heads
    with registry.using(attention_varlen="torch.native"):
        out, lse = registry.call("attention_varlen", q, k, v, offsets, offsets, causal=True)
    own = slice(70, 770)
    one = torch.tensor([0, 700], dtype=torch.int32, device="cuda")
    part = [x[own] for x in (grad_out, q, k, v)]
    given = (*part, one, one, out[own], lse[:, own].contiguous())
    with registry.using(attention_varlen_backward="torch.native"):
        right = registry.call("attention_varlen_backward", *given, causal=True)
    for x in (grad_out, q, k, v, out):
        x[:70], x[770:] = torch.nan, torch.inf
    with registry.using(attention_varlen_backward=name):
        found = registry.call("attention_varlen_backward", grad_out, q, k, v, offsets, offsets, out, lse, causal=True)
    for mine, expected in zip(found, right, strict=True):
        torch.testing.assert_close(mine[own], expected, rtol=4e-2, atol=4e-2)


@of_each_op
def test_wild_offsets_stay_within_the_tensors(op: Op) -> None:
    values = op.draw(op.problem_of(PACKED), "normal", torch.Generator("cuda").manual_seed(0))
    first = op.parsed.names.index("cu_seqlens_q")
    wild = torch.tensor([-9, 2**30, 5, 0, 2**31 - 1, 3, 700, -(2**31)], dtype=torch.int32, device="cuda")
    late = torch.tensor([900, 950, 1000, 1300, 1400, 1500, 1600, 2000], dtype=torch.int32, device="cuda")
    for offsets in (wild, late):
        with registry.using(**{op.name: WGMMA}):
            registry.call(op.name, *values[:first], offsets, offsets, *values[first + 2 :])
        torch.cuda.synchronize()


@pytest.mark.parametrize("of_gradients", ["torch.native", WGMMA])
def test_a_gradient_by_its_outputs_is_that_of_torch(of_gradients: str) -> None:
    offsets = torch.tensor([0, 300, 1000], dtype=torch.int32, device="cuda")
    heads = [torch.randn(1000, count, 64, device="cuda", dtype=torch.bfloat16) for count in (8, 2, 2)]
    found, expected = ([x.clone().requires_grad_() for x in heads] for _ in range(2))
    with registry.using(attention_varlen=WGMMA, attention_varlen_backward=of_gradients):
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
