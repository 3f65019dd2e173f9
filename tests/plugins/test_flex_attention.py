"""attention by FlexAttention and by torch.compile without a GPU: blocks, forms, reasons, and what a plan carries."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from registry.artifact import Artifact, Built, Signature, Target
from registry.backends.inductor.sizes import fresh
from registry.contracts import ATTENTION as OP
from registry.correctness import numerics
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate, build
from registry.problem import Problem, Value
from registry_torch.attention import block_masks, flex, flex_private
from registry_torch.attention.block_masks import SeenBlocks, block_specs, seen_blocks
from registry_torch.attention.compiled import attend_at_once
from registry_torch.attention.flex import FlexAttention, FlexCall, by_flex_attention

from ..covering import covering
from .test_triton import A100, H200, HEADS, problem_of

CPU = torch.device("cpu")
SMALL: Mapping[str, Value] = {**HEADS, "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 40, "kv_len": 40, "head_dim": 16}


class EagerFlexAttention(FlexAttention):
    """FlexAttention whose plans run its function as it is: a CPU's compiled one has no log-sum-exp."""

    name = "torch.eager_flex"

    def _compiled(self, artifact: Artifact, target: Target) -> Callable[..., Any]:
        from registry.backends.inductor.implementation import _specialised

        return _specialised(self.function, artifact.variant)[0]


def of_lengths(q_len: int, kv_len: int, causal: bool, span: int | bool) -> Problem:
    return OP.problem_of(
        {**SMALL, "q_len": q_len, "kv_len": kv_len, "causal": causal, "span": span, "dtype": "float32"}
    )


@pytest.mark.parametrize("span", [False, 1, 100, 128, 300])
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_are_those_of_torchs_own_mask(causal: bool, span: int | bool) -> None:
    for q_len in (1, 128, 300):
        for kv_len in (1, 128, 257, 512):
            problem = of_lengths(q_len, kv_len, causal, span)
            found = seen_blocks(problem, CPU)
            if not causal and span is False:
                assert found.full_numbers is None
                continue
            seen = flex._seen(kv_len - q_len, causal, -1 if span is False else int(span) - 1)
            right = create_block_mask(seen, 1, 1, q_len, kv_len, device="cpu")
            wanted = right.kv_num_blocks, right.kv_indices, right.full_kv_num_blocks, right.full_kv_indices
            for one, other in zip(found, wanted, strict=True):
                assert torch.equal(one, other), problem


@pytest.mark.parametrize(("causal", "span"), [(False, False), (True, False), (False, 30)])
def test_blocks_have_the_specs_that_code_is_compiled_for(causal: bool, span: int | bool) -> None:
    problem = of_lengths(300, 700, causal, span)
    specs = block_specs(problem, CPU)
    for one, spec in zip(seen_blocks(problem, CPU), specs, strict=True):
        assert (one is None) == (spec is None)
        if one is not None and spec is not None:
            assert (tuple(one.shape), one.dtype, one.stride()) == (spec.shape, spec.dtype, spec.strides)


def flexed(problem: Problem, values: tuple[Any, ...]) -> Any:
    return by_flex_attention(FlexCall(*values, *seen_blocks(problem, CPU)))


@pytest.mark.parametrize("by", [flexed, lambda _, values: attend_at_once(*values)], ids=["flex", "compile"])
@pytest.mark.few(1)
def test_every_form_is_right(by: Callable[[Problem, tuple[Any, ...]], Any]) -> None:
    # torch's uncompiled form multiplies halves in halves: float32 alone
    problems = covering(OP.problem_of({**dims, "dtype": "float32"}) for dims in OP.examples)
    for place in range(max(len(problems), len(OP.kinds))):
        problem, kind = problems[place % len(problems)], OP.kinds[place % len(OP.kinds)]
        values = OP.draw(problem, kind, torch.Generator().manual_seed(3))
        verdict = numerics.judged(OP, problem, by(problem, values), values)
        assert verdict.ok, f"{problem} {kind}: {verdict.message}"


@pytest.mark.parametrize("more", [{}, {"mask": "bool", "softcap": True}, {"mask": "additive", "span": 9}], ids=str)
def test_torch_compile_understands_the_function(more: Mapping[str, Value]) -> None:
    problem = OP.problem_of({**SMALL, **more, "dtype": "float32"})
    values = OP.draw(problem, "masked", torch.Generator().manual_seed(0))
    blocks = seen_blocks(problem, CPU)
    q, k, v, mask, *others = values

    def function(*tensors: torch.Tensor) -> Any:
        heads, given = tensors[:3], tensors[3] if mask is not None else None
        return by_flex_attention(FlexCall(*heads, given, *others, *blocks))

    tensors = [x for x in (q, k, v, mask) if x is not None]
    found = torch.compile(fresh(function), backend="eager", fullgraph=True, dynamic=False)(*tensors)
    verdict = numerics.judged(OP, problem, found, values)
    assert verdict.ok, verdict.message


def _signature(problem: Problem, values: tuple[Any, ...]) -> Signature:
    arguments = OP.arguments(values)
    return Signature(arguments, OP.output_specs(arguments, CPU))


def test_a_call_with_and_without_a_scale_is_one_variant_with_the_blocks() -> None:
    problem = OP.problem_of({**SMALL, "dtype": "float32"})
    values = OP.draw(problem, "normal", torch.Generator())
    keys = set()
    for scale in (None, 0.25):
        given = (*values[:5], scale, *values[6:])
        (variant,) = FlexAttention().variants(problem, {}, H200, _signature(problem, given))
        assert [argument.get("shape") for argument in variant.spec["arguments"][-4:]] == [
            [1, 1, 1], [1, 1, 1, 1], [1, 1, 1], [1, 1, 1, 1],
        ]  # fmt: skip
        keys.add(variant.key)
    assert len(keys) == 1


def test_a_plan_makes_its_blocks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = OP.problem_of({**SMALL, "q_len": 200, "kv_len": 300, "dtype": "float32"})
    values = OP.draw(problem, "normal", torch.Generator().manual_seed(0))
    signature = _signature(problem, values)
    implementation, device = EagerFlexAttention(), Device.of("cpu")
    (variant,) = implementation.variants(problem, {}, device, signature)
    run = implementation.bind(problem, {}, device, Built(signature, (Artifact(variant),)))

    def refuse(*_: object) -> SeenBlocks:
        raise AssertionError("a call makes blocks")

    monkeypatch.setattr(flex, "seen_blocks", refuse)
    monkeypatch.setattr(block_masks, "_some_and_every", refuse)
    for scale in (values[5], None):
        given = (*values[:5], scale, *values[6:])
        verdict = numerics.judged(OP, problem, run((), given, ()), given)
        assert verdict.ok, verdict.message


def test_without_torchs_private_operator_nothing_is_compiled_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flex_private.missing() == []
    monkeypatch.delattr("torch.nn.attention.flex_attention._apply_kernel_options")
    assert flex_private.missing() == ["_apply_kernel_options"]
    problem = OP.problem_of({**SMALL, "dtype": "float32"})
    values = OP.draw(problem, "normal", torch.Generator())
    (variant,) = FlexAttention().variants(problem, {}, H200, _signature(problem, values))
    assert FlexAttention().compile(variant, H200.target) == Artifact(variant)


@pytest.mark.parametrize(
    ("name", "more", "device", "reason"),
    [
        ("torch.flex_attention", {}, Device.of("cpu"), "on a CPU compiled FlexAttention returns no log-sum-exp"),
        ("torch.flex_attention", {"dtype": "float64"}, H200,
         "dtype is float64, expected float16 or bfloat16 or float32"),
        ("torch.flex_attention", {"head_dim": 8}, H200, "head_dim=8 (at least 16)"),
        ("torch.compile", {"batch": 64, "heads": 32, "q_len": 4096, "kv_len": 4096}, H200,
         "all logits have 128 GiB (limit 16)"),
    ],
    ids=str,
)  # fmt: skip
def test_reasons_are_told(catalog: Catalog, name: str, more: Mapping[str, Value], device: Device, reason: str) -> None:
    problem = OP.problem_of({**SMALL, "dtype": "bfloat16", **more})
    assert reason in list(catalog.implementation("attention", name).unsupported(problem, device))


@pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.architecture)
def test_every_form_has_flex_attention_on_a_gpu(device: Device) -> None:
    pytest.importorskip("triton")
    for dims in OP.examples:
        if dims["dtype"] != "float64" and int(dims["head_dim"]) >= 16:
            assert not list(FlexAttention().unsupported(OP.problem_of(dims), device)), dims


@pytest.mark.thorough
def test_compiled_for_a_cpu_it_is_right(catalog: Catalog) -> None:
    implementation, device = catalog.implementation("attention", "torch.compile"), Device.of("cpu")
    problem = problem_of("attention", {**SMALL, "q_len": 33, "span": 9, "softcap": True, "mask": "bool"})
    values = OP.draw(problem, "masked", torch.Generator().manual_seed(0))
    plan = build(OP, Candidate(implementation, {}), problem, OP.arguments(values), device)
    verdict = numerics.judged(OP, problem, plan(*values), values)
    assert verdict.ok, verdict.message


def test_the_lowest_numbers_of_a_mask_weigh_the_same() -> None:
    mask = torch.full((1, 1, 1, 4), torch.finfo(torch.float32).min)
    mask[..., 3] = -math.inf
    bias = flex._raised(mask, torch.finfo(torch.float32).min / 8)
    # times log2(e), as the kernel multiplies, it is finite
    assert (bias * math.log2(math.e)).isfinite().flatten().tolist() == [True, True, True, False]
