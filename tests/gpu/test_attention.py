"""attention on a GPU: implementations in every form that they take, fused projections, captured graphs, training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

import registry
from registry.contracts import ATTENTION
from registry.correctness.numerics import judged
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate, build
from registry.problem import Value
from registry.testing import check_implementation
from registry_torch.attention.masked_cudnn import bias_of_mask

from ..tiers import spread
from .replaying import replayed

FUSED = ("torch.sdpa_flash", "torch.sdpa_cudnn", "torch.sdpa_efficient", "triton.flash")
MASKED = "torch.sdpa_cudnn_masked"
WGMMA = "cuda.wgmma"
OPS = ("attention", "attention_backward")
NEEDS_HOPPER = pytest.mark.skipif(torch.cuda.get_device_capability()[0] != 9, reason="needs compute capability 9.0")
ON_HOPPER = [pytest.param(op, WGMMA, marks=NEEDS_HOPPER) for op in OPS]
EACH = [*((op, name) for op in OPS for name in (*FUSED, MASKED)), *ON_HOPPER]
UNMASKED = [*((op, name) for op in OPS for name in FUSED), *ON_HOPPER]
PLAIN: Mapping[str, Value] = {
    "batch": 2, "heads": 8, "kv_heads": 2, "q_len": 333, "kv_len": 333, "head_dim": 128, "causal": True,
    "mask": "none", "softcap": False, "span": False, "dtype": "bfloat16",
}  # fmt: skip
FORMS: Mapping[str, Mapping[str, Value]] = {
    "causal": {},
    "whole": {"causal": False, "kv_len": 512},
    "as many heads": {"kv_heads": 8, "head_dim": 64, "dtype": "float16"},
    "one head of keys": {"kv_heads": 1, "head_dim": 96},
    "behind other keys": {"q_len": 77, "kv_len": 700},
    "more queries than keys": {"q_len": 300, "kv_len": 100},
    "window": {"span": 50},
    "window, as many heads": {"span": 50, "kv_heads": 8},
    "window of both sides": {"span": 50, "causal": False},
    "cap": {"softcap": True, "head_dim": 256},
    "cap and window": {"softcap": True, "span": 50, "head_dim": 64},
    "mask": {"mask": "bool", "causal": False, "kv_heads": 8, "kv_len": 336},
    "bias": {"mask": "additive", "causal": False, "kv_heads": 8, "kv_len": 336},
    "causal bias": {"mask": "additive", "kv_heads": 8, "kv_len": 336},
    "causal mask of grouped heads": {"mask": "bool", "q_len": 336, "kv_len": 336, "head_dim": 64},
    "float32": {"dtype": "float32", "kv_heads": 8, "head_dim": 64},
    "one query": {"q_len": 1, "kv_len": 1000},
    "odd heads": {"head_dim": 72},
    # compute-sanitizer takes seconds for each
    "few": {"batch": 1, "heads": 2, "kv_heads": 1, "q_len": 70, "kv_len": 130},
}
TAKEN: Mapping[str, Sequence[str]] = {
    "torch.sdpa_flash": ("causal", "whole", "as many heads", "behind other keys", "window", "window of both sides"),
    "torch.sdpa_cudnn": ("causal", "whole", "as many heads"),
    "torch.sdpa_efficient": ("as many heads", "window, as many heads", "mask", "float32"),
    "triton.flash": tuple(FORMS),
    WGMMA: (
        "causal",
        "whole",
        "as many heads",
        "one head of keys",
        "behind other keys",
        "more queries than keys",
        "window",
        "window, as many heads",
        "window of both sides",
        "cap",
        "cap and window",
        "one query",
        "odd heads",
        "few",
    ),
    MASKED: ("mask", "bias", "causal bias", "causal mask of grouped heads"),
}
"""Forms that an implementation must take, by its name."""
IMPRECISE = ("attention_backward", "torch.sdpa_efficient", "as many heads", "outliers")
"""Beside outliers most of its slopes are below the normal numbers of float16: tune refuses it there."""


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize(("op", "name"), EACH)
def test_every_form_is_right(catalog: Catalog, op: str, name: str, form: str) -> None:
    contract, implementation, device = catalog.op(op), catalog.implementation(op, name), Device.of("cuda")
    problem = contract.problem_of({**PLAIN, **FORMS[form]})
    if found := list(implementation.unsupported(problem, device)):
        assert form not in TAKEN[name], found
        pytest.skip(found[0])
    candidate = Candidate(implementation, implementation.default(problem, device))
    for kind in contract.kinds:
        if (op, name, form, kind) == IMPRECISE:
            continue
        values = contract.draw(problem, kind, torch.Generator("cuda").manual_seed(0))
        plan = build(contract, candidate, problem, contract.arguments(values), device)
        verdict = judged(contract, problem, plan(*values), values)
        assert verdict.ok, f"{kind}: {verdict.message}"


@pytest.mark.parametrize(("op", "name"), EACH)
def test_layouts_and_other_sizes_are_right(catalog: Catalog, op: str, name: str) -> None:
    problems = [{**PLAIN, "q_len": 65, "kv_len": 65, "kv_heads": 8}]
    if name == MASKED:
        problems = [{**PLAIN, **FORMS["mask"], "q_len": 65, "kv_len": 64}]
    assert check_implementation(catalog.implementation(op, name), catalog.op(op), problems=problems, device="cuda").ok


@pytest.mark.parametrize("name", ["torch.sdpa_flash", "torch.sdpa_cudnn", "torch.sdpa_efficient", "triton.flash"])
def test_a_scale_of_zero_is_the_mean_of_all_values(name: str) -> None:
    q, k, v = (torch.randn(2, 70, 4, 64, dtype=torch.bfloat16, device="cuda").requires_grad_() for _ in range(3))
    with registry.using(attention=name, attention_backward=name):
        out, lse = registry.call("attention", q, k, v, scale=0.0)
        out.sum().backward()
    torch.testing.assert_close(out, v.mean(1, keepdim=True).expand_as(v), rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(lse, torch.full_like(lse, math.log(70)))
    for one, expected in ((q, 0.0), (k, 0.0), (v, 1.0)):
        assert one.grad is not None
        torch.testing.assert_close(one.grad, torch.full_like(one, expected), rtol=2e-2, atol=1e-3)


def test_a_lone_row_may_have_any_stride() -> None:
    catalog = Catalog()
    contract, device = catalog.op("attention_backward"), Device.of("cuda")
    implementation = catalog.implementation("attention_backward", "torch.sdpa_efficient")
    sizes: Mapping[str, Value] = {"batch": 1, "heads": 1, "kv_heads": 1, "q_len": 1, "kv_len": 1, "head_dim": 8}
    problem = contract.problem_of({**PLAIN, **sizes, "dtype": "float32"})
    values = contract.draw(problem, "normal", torch.Generator("cuda").manual_seed(0))
    q = values[1].as_strided(values[1].shape, (13, 13, 13, 1))
    given = (values[0], q, *values[2:])
    plan = build(contract, Candidate(implementation, {}), problem, contract.arguments(given), device)
    verdict = judged(contract, problem, plan(*given), values)
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads", [2, 8])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_transposed_heads_are_those_of_torch(dtype: torch.dtype, heads: int, causal: bool) -> None:
    # as in torch's function: heads before the length, in memory too, also those of the gradient
    drawn = [torch.randn(2, each, 512, 64, dtype=dtype, device="cuda") for each in (8, heads, heads, 8)]
    found, expected = ([one.clone().requires_grad_() for one in drawn[:3]] for _ in range(2))
    out = registry.call("attention", *(one.transpose(1, 2) for one in found), causal=causal)[0].transpose(1, 2)
    out.backward(drawn[3])
    q, k, v = (one.double() for one in expected)
    whole = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    whole.backward(drawn[3].double())
    for one, other in zip(found, expected, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        error = (one.grad.double() - other.grad.double()).norm() / other.grad.double().norm()
        assert error < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("ours_first", [True, False])
@pytest.mark.parametrize("name", ["torch.sdpa_cudnn", MASKED])
def test_neither_gradient_runs_by_a_plan_of_cudnn_for_strides_of_the_other(
    catalog: Catalog, name: str, ours_first: bool
) -> None:
    # torch finds a plan again by the strides of queries, keys and values alone; these sizes are met nowhere else
    op, device, kv_len = catalog.op("attention_backward"), Device.of("cuda"), 264 if ours_first else 280
    form = {"kv_heads": 8, "q_len": kv_len, "kv_len": kv_len, "head_dim": 64, "causal": name != MASKED}
    problem = op.problem_of({**PLAIN, **form, "mask": "bool" if name == MASKED else "none"})
    values = dict(zip(op.parsed.names, op.draw(problem, "normal", torch.Generator("cuda").manual_seed(0)), strict=True))
    for each in ("q", "k", "v", "out", "grad_out"):  # heads before the length, in memory too
        values[each] = values[each].transpose(1, 2).contiguous().transpose(1, 2)
    candidate = Candidate(catalog.implementation(op.name, name), {})
    # outputs and their gradients as the op has them, in one layout: cuDNN before 9.5.1 read the ones by the others'
    other = {**values, **{each: values[each].contiguous() for each in ("out", "grad_out")}}
    plans = [build(op, candidate, problem, op.arguments(tuple(each.values())), device) for each in (values, other)]
    for _ in range(2):
        for ours in (ours_first, not ours_first):
            for plan, each in zip(plans, (values, other), strict=True) if ours else [(None, other)]:
                arguments = tuple(each.values())
                results = gradients_of_torch(other, problem) if plan is None else plan(*arguments)
                verdict = judged(op, problem, op.results(results, arguments), arguments)
                assert verdict.ok, f"{'ours' if ours else 'of torch'}: {verdict.message}"


def gradients_of_torch(values: Mapping[str, Any], problem: Any) -> tuple[torch.Tensor, ...]:
    """cuDNN's, as torch's own function has them computed: no dropout is 0.0."""
    q, k, v, out, grad_out = (values[name].transpose(1, 2) for name in ("q", "k", "v", "out", "grad_out"))
    bias = None if values["mask"] is None else bias_of_mask(values["mask"], q.dtype)
    seed = torch.zeros((), dtype=torch.int64, device=q.device)
    found = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        grad_out, q, k, v, out, values["lse"].unsqueeze(-1), seed, seed, bias, None, None, problem.q_len,
        problem.kv_len, 0.0, problem.causal,
    )  # fmt: skip
    return tuple([each.transpose(1, 2).contiguous() for each in found])


@pytest.mark.parametrize(("op", "name"), [*((op, "torch.native") for op in OPS), *UNMASKED])
def test_a_long_prompt_is_right(catalog: Catalog, op: str, name: str) -> None:
    contract, implementation, device = catalog.op(op), catalog.implementation(op, name), Device.of("cuda")
    problem = contract.problem_of({**PLAIN, "batch": 1, "kv_heads": 8, "q_len": 4096, "kv_len": 4096})
    assert not list(implementation.unsupported(problem, device))
    values = contract.draw(problem, "normal", torch.Generator("cuda").manual_seed(0))
    candidate = Candidate(implementation, implementation.default(problem, device))
    plan = build(contract, candidate, problem, contract.arguments(values), device)
    verdict = judged(contract, problem, plan(*values), values)
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(("op", "name"), ON_HOPPER)
def test_warps_that_copy_and_warps_that_multiply_end_and_are_right(
    catalog: Catalog, op: str, name: str, head_dim: int
) -> None:
    """More tiles than blocks of threads, the last of them missing; tiles of which a part is there, or of no keys.

    A copy that is read before it is complete, or written while it is read, makes two runs differ.
    """
    contract, implementation, device = catalog.op(op), catalog.implementation(op, name), Device.of("cuda")
    forms = (
        {},
        {"causal": False, "batch": 7},
        {"kv_len": 400},
        {"span": 300, "softcap": True},
        {"q_len": 5, "kv_len": 7},
    )
    for more in forms:
        problem = contract.problem_of({**PLAIN, "q_len": 1700, "kv_len": 1700, "head_dim": head_dim, **more})
        values = contract.draw(problem, "normal", torch.Generator("cuda").manual_seed(0))
        for config in spread(implementation.space(problem, device).configs, 4):
            plan = build(contract, Candidate(implementation, config), problem, contract.arguments(values), device)
            found = plan(*values)
            verdict = judged(contract, problem, found, values)
            assert verdict.ok, f"{more} {config}: {verdict.message}"
            for again in [plan(*values) for _ in range(10)]:
                assert all(map(torch.equal, found, again)), f"{more} {config}"


def torchs(*heads: torch.Tensor) -> torch.Tensor:
    """torch's causal attention of [batch, length, heads, head_dim]."""
    q, k, v = (x.transpose(1, 2) for x in heads)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def projection(tokens: int, batch: int = 2, heads: int = 8, kv_heads: int = 8) -> Sequence[torch.Tensor]:
    """Queries, keys and values, parts of one tensor."""
    sizes = [heads * 64, kv_heads * 64, kv_heads * 64]
    whole = torch.randn(batch, tokens, sum(sizes), device="cuda", dtype=torch.bfloat16)
    return [part.unflatten(-1, (-1, 64)) for part in whole.split(sizes, -1)]


@pytest.mark.parametrize(("op", "name"), [*(("attention", name) for name in FUSED), ON_HOPPER[0]])
def test_parts_of_a_projection_and_heads_before_rows_are_read_without_a_copy(op: str, name: str) -> None:
    q, k, v = projection(200)
    right = torchs(q, k, v)
    before = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    for given in ((q, k, v), before):
        with registry.using(**{op: name}):
            assert registry.explain(op, *given, causal=True).implementation == name
            out, lse = registry.call(op, *given, causal=True)
        torch.testing.assert_close(out, right, rtol=2e-2, atol=2e-2)
        assert (out.is_contiguous(), lse.is_contiguous(), lse.shape) == (True, True, (2, 8, 200))


@pytest.mark.parametrize(("op", "name"), UNMASKED)
def test_a_captured_call_reads_what_its_inputs_hold_at_the_replay(catalog: Catalog, op: str, name: str) -> None:
    contract, implementation = catalog.op(op), catalog.implementation(op, name)
    problem = contract.problem_of({**PLAIN, "kv_heads": 8})
    verdict = replayed(contract, implementation, problem)
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("name", [*FUSED, pytest.param(WGMMA, marks=NEEDS_HOPPER)])
def test_training_has_torchs_gradients(name: str) -> None:
    given = [x.detach().clone().requires_grad_() for x in projection(160)]
    with registry.using(attention=name, attention_backward=name):
        out, _ = registry.call("attention", *given, causal=True)
        seed = torch.randn_like(out)
        found = torch.autograd.grad(out, given, seed)
    expected = torch.autograd.grad(torchs(*given), given, seed)
    for mine, right in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, right, rtol=4e-2, atol=4e-2)


@pytest.mark.parametrize("outer", [(1, 1), (2, 1), (1, 8), (2, 8)], ids=str)
def test_masks_of_all_batches_or_all_heads_are_read_by_triton(outer: tuple[int, int]) -> None:
    q, k, v = projection(50)
    seen = torch.rand(*outer, 50, 50, device="cuda") < 0.5
    bias = torch.randn(seen.shape, device="cuda", dtype=q.dtype).masked_fill(~seen, -math.inf)
    with registry.using(attention="triton.flash"):
        for mask in (seen, bias, seen[:, :, :1].expand(-1, -1, 50, -1)):
            out, lse = registry.call("attention", q, k, v, mask)
            wide = mask if mask.dtype == torch.bool else mask.double()
            right: Any = ATTENTION.reference(q.double(), k.double(), v.double(), wide)
            torch.testing.assert_close(out.double(), right[0], rtol=2e-2, atol=2e-2)
            torch.testing.assert_close(lse.double(), right[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (2, 8)], ids=str)
@pytest.mark.parametrize("form", ["bool", "additive"])
@pytest.mark.parametrize("causal", [False, True])
def test_cudnn_with_a_mask_has_the_numbers_of_the_reference(shape: tuple[int, int], form: str, causal: bool) -> None:
    q, k, v = projection(48, kv_heads=2)
    seen = torch.rand(*shape, 48, 48, device="cuda") < 0.5
    seen[:, :, 3] = False
    mask = torch.randn(seen.shape, device="cuda", dtype=q.dtype).masked_fill_(~seen, -math.inf)
    mask[:, :, 5] = torch.finfo(q.dtype).min
    if form == "bool":
        mask = seen
    grad_out = torch.randn(q.shape, device="cuda", dtype=q.dtype)
    wide = [x.double() for x in (grad_out, q, k, v)]
    right: Any = ATTENTION.reference(*wide[1:], mask if form == "bool" else mask.double(), causal)
    with registry.using(attention=MASKED, attention_backward=MASKED):
        out, lse = registry.call("attention", q, k, v, mask, causal=causal)
        torch.testing.assert_close(out.double(), right[0], rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(lse.double(), right[1].double(), rtol=1e-4, atol=1e-4)
        assert not out[:, 3].any()
        assert (lse[:, :, 3] == -math.inf).all()
        found = registry.call("attention_backward", grad_out, q, k, v, mask, out, lse, causal=causal)
    expected: Any = registry.ops()["attention_backward"].reference(
        *wide, mask if form == "bool" else mask.double(), out.double(), lse.double(), causal
    )
    assert not found[0][:, 3].any()
    for mine, answer in zip(found, expected, strict=True):
        # a row of the lowest numbers has weights of 1, by its lse, so that its terms are large
        torch.testing.assert_close(mine.double(), answer, rtol=4e-2, atol=4e-2 * float(answer.abs().max()))
