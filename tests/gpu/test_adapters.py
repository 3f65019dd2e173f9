"""The adapters of other projects' libraries on a GPU: right numbers where they say that they can run, also in graphs.

An adapter whose library is not installed is skipped. Kinds of inputs that a library is known to get wrong are the
tuner's to refuse: here are ordinary ones, at odd sizes and at those of a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

import registry
from registry.arguments.schema import with_tensors
from registry.correctness.numerics import compare, own_error, reference64
from registry.device import Device
from registry.dispatch.plans.plan import Candidate, Plan, build
from registry.implementation import Implementation
from registry.problem import Problem, Value

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

ADAPTERS = ("quack.", "liger.", "flashinfer.", "flash_attn.")
AFFINE: Mapping[str, Value] = {"weight": True, "bias": True}
HEADS: Mapping[str, Value] = {"heads": 8, "kv_heads": 2, "head_dim": 128}
PROMPT: Mapping[str, Value] = {**HEADS, "causal": True, "mask": "none", "softcap": False, "span": False}
CACHE: Mapping[str, Value] = {
    **HEADS, "q_len": 1, "softcap": False, "span": False, "kv_dtype": "auto", "lengths": "uniform",
}  # fmt: skip
ROWS: tuple[Mapping[str, Value], ...] = ({"rows": 37, "cols": 1024}, {"rows": 1024, "cols": 4096})
LOSS: Mapping[str, Value] = {"reduction": "mean", "weight": False}
PROMPTS: tuple[Mapping[str, Value], ...] = (
    {**PROMPT, "batch": 1, "q_len": 300, "kv_len": 300},
    {**PROMPT, "batch": 3, "q_len": 128, "kv_len": 257},
)
CACHES: tuple[Mapping[str, Value], ...] = (
    {**CACHE, "batch": 5, "kv_len": 1024, "page": 16},
    {**CACHE, "batch": 3, "kv_len": 768, "page": False},
)
SIZES: Mapping[str, tuple[Mapping[str, Value], ...]] = {
    "softmax": ROWS,
    "softmax_backward": ROWS,
    "rms_norm": ROWS,
    "rms_norm_backward": ROWS,
    "fused_add_rms_norm": tuple({**each, "weight": True} for each in ROWS),
    "layer_norm": tuple({**each, **AFFINE} for each in ROWS),
    "layer_norm_backward": tuple({**each, **AFFINE} for each in ROWS),
    "silu_and_mul": ROWS,
    "silu_and_mul_backward": ROWS,
    "gelu_and_mul": tuple({**each, "approximate": "tanh"} for each in ROWS),
    "gelu_and_mul_backward": tuple({**each, "approximate": "tanh"} for each in ROWS),
    "cross_entropy": tuple({**each, **LOSS} for each in ROWS),
    "cross_entropy_backward": tuple({**each, **LOSS} for each in ROWS),
    "fused_linear_cross_entropy_gradients": (
        {"rows": 257, "cols": 1000, "k": 256, "reduction": "mean", "bias": False},
        {"rows": 64, "cols": 4000, "k": 128, "reduction": "sum", "bias": True},
    ),
    **dict.fromkeys(
        ("rotary_embedding", "apply_rotary", "apply_rotary_backward"),
        (
            {"tokens": 37, **HEADS, "rotary_dim": 128, "style": "neox"},
            {"tokens": 512, **HEADS, "rotary_dim": 64, "style": "neox"},
        ),
    ),
    "kv_cache_append": ({"tokens": 37, "kv_heads": 2, "head_dim": 128, "block_size": 16, "kv_dtype": "auto"},),
    "attention": PROMPTS,
    "attention_backward": PROMPTS,
    "attention_decode": CACHES,
    "mla_decode": tuple(
        {
            "batch": 5,
            "heads": 16,
            "kv_len": 1024,
            "kv_lora_rank": 512,
            "rope_dim": 64,
            "page": page,
            "lengths": "uniform",
        }
        for page in (64, False)
    ),
}


def adapters() -> Iterator[Any]:
    for op in SIZES:
        for one in registry.implementations(op):
            if one.name.startswith(ADAPTERS):
                yield pytest.param(op, one, id=f"{op}-{one.name}")


def supported(op: str, implementation: Implementation) -> list[Problem]:
    """The problems that an implementation takes; skips where it takes none, for the reasons that it gives."""
    device = Device.of("cuda")
    problems = [registry.ops()[op].problem_of({**dims, "dtype": "bfloat16"}) for dims in SIZES[op]]
    refused = {problem: list(implementation.unsupported(problem, device)) for problem in problems}
    if all(refused.values()):
        pytest.skip("; ".join(dict.fromkeys(one for reasons in refused.values() for one in reasons)))
    return [problem for problem in problems if not refused[problem]]


def built(implementation: Implementation, problem: Problem, values: tuple[Any, ...]) -> Plan:
    op, device = registry.ops()[problem.op], Device.of("cuda")
    candidate = Candidate(implementation, implementation.default(problem, device))
    return build(op, candidate, problem, op.arguments(values), device)


@pytest.mark.parametrize(("name", "implementation"), [*adapters()])
def test_numbers_are_those_of_the_reference(name: str, implementation: Implementation) -> None:
    op = registry.ops()[name]
    for problem in supported(name, implementation):
        values = op.inputs(problem, op.kinds[0], torch.Generator("cuda").manual_seed(3))
        reference = reference64(op, values)
        errors = own_error(op, problem, values, reference)
        before, given = with_tensors(values, torch.clone), with_tensors(values, torch.clone)
        found = built(implementation, problem, values)(*given)
        outputs = () if found is None else found if isinstance(found, tuple) else (found,)
        judgement = compare(op, problem, op.results(outputs, given), reference, errors, before)
        assert judgement.ok, (problem, judgement)


@pytest.mark.parametrize(("name", "implementation"), [*adapters()])
def test_what_says_that_it_is_capturable_is_captured(name: str, implementation: Implementation) -> None:
    op = registry.ops()[name]
    problem = supported(name, implementation)[0]
    if not implementation.capturable:
        pytest.skip("it waits for the device")
    values = op.inputs(problem, op.kinds[0], torch.Generator("cuda").manual_seed(3))
    plan, reference = built(implementation, problem, values), reference64(op, values)
    errors = own_error(op, problem, values, reference)
    before, given = with_tensors(values, torch.clone), with_tensors(values, torch.clone)
    plan(*with_tensors(values, torch.clone))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = plan(*given)
    graph.replay()
    torch.cuda.synchronize()
    outputs = () if found is None else found if isinstance(found, tuple) else (found,)
    judgement = compare(op, problem, op.results(outputs, given), reference, errors, before)
    assert judgement.ok, (problem, judgement)
