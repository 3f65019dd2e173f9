"""The Triton kernels of int8 caches in Triton's interpreter: every level, every form of a call, and skipped tokens.

test_triton_numerics.py starts these tests in its process, in which Triton interprets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from registry.backends.triton import INTERPRETED
from registry.contracts import ATTENTION_DECODE, KV_CACHE_APPEND
from registry.correctness.numerics import judged
from registry.device import Device
from registry.discovery.answers import refusals
from registry.dispatch.plans.plan import Candidate, build
from registry.implementation import Implementation
from registry_triton.attention.decode_int8 import SplitInt8Decode, WholeInt8Decode
from registry_triton.decoder.kv_cache_append_int8 import BlockInt8Append

CPU = Device.of("cpu")
pytestmark = [
    pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*"),
]
WHOLE, SPLIT = WholeInt8Decode(), SplitInt8Decode()
DIMS: Mapping[str, Any] = {
    "batch": 3, "heads": 6, "kv_heads": 2, "q_len": 1, "kv_len": 160, "head_dim": 20, "page": 16, "span": False,
    "kv_dtype": "int8", "softcap": False, "lengths": "skewed", "dtype": "bfloat16",
}  # fmt: skip


def results(implementation: Implementation, values: tuple[Any, ...], place: int = 0) -> Any:
    """The results of one of the configurations; the first is the default."""
    op = KV_CACHE_APPEND if implementation.op == "kv_cache_append" else ATTENTION_DECODE
    problem = op.pose(op.arguments(values))
    assert not refusals(implementation, problem, CPU)
    configs = implementation.space(problem, CPU).configs
    config = configs[place * 7 % len(configs)] if place else implementation.default(problem, CPU)
    return build(op, Candidate(implementation, config), problem, op.arguments(values), CPU)(*values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.few(3)
def test_numerics_of_each_level(dtype: torch.dtype) -> None:
    # of a single key the output is the value, and its logit the level that a query of one element points to
    levels = torch.arange(-128, 128).to(torch.int8).view(1, 1, 1, 256)
    scales, lengths = (torch.tensor([0.25]), torch.tensor([1.0])), torch.tensor([1], dtype=torch.int32)
    for place in (0, 1, 127, 128, 255):
        q = torch.zeros(1, 1, 2, 256, dtype=dtype)
        q[..., place] = 1.0
        values = ATTENTION_DECODE.bind((q, levels, levels, lengths, None, *scales, 1.0), {})
        out, lse = results(WHOLE, values)
        assert torch.equal(out, levels.expand(1, 1, 2, 256).to(dtype))
        torch.testing.assert_close(lse, torch.full((1, 2, 1), 0.25 * (place - 128)))


FORMS: tuple[Mapping[str, Any], ...] = (
    {"page": False, "dtype": "float16", "q_len": 3},
    {"span": 41, "softcap": True, "q_len": 2},
    {"page": 4, "lengths": "uniform", "dtype": "float32"},
    {"heads": 8, "kv_heads": 1, "q_len": 9, "kv_len": 96},
    {"page": 32, "span": 1, "dtype": "float16"},
)


@pytest.mark.parametrize("form", [WHOLE, SPLIT], ids=lambda form: form.name)
@pytest.mark.parametrize("dims", FORMS, ids=str)
@pytest.mark.few(4)
def test_numerics_of_pages_windows_caps_and_groups(form: Implementation, dims: Mapping[str, Any]) -> None:
    problem = ATTENTION_DECODE.problem_of({**DIMS, **dims})
    for place, kind in enumerate(("outliers", "beyond", "last_key", "nan")):
        values = ATTENTION_DECODE.draw(problem, kind, torch.Generator().manual_seed(place))
        verdict = judged(ATTENTION_DECODE, problem, results(form, values, place), values)
        assert verdict.ok, (kind, verdict)


@pytest.mark.parametrize("power", [-100, 100])
@pytest.mark.few(1)
def test_numerics_of_queries_that_float16_does_not_hold(power: int) -> None:
    drawn = ATTENTION_DECODE.draw(ATTENTION_DECODE.problem_of(DIMS), "normal", torch.Generator().manual_seed(0))
    values = (drawn[0] * 2.0**power, *drawn[1:7], 2.0**-power / 4, *drawn[8:])
    problem = ATTENTION_DECODE.pose(ATTENTION_DECODE.arguments(values))
    verdict = judged(ATTENTION_DECODE, problem, results(WHOLE, values), values)
    assert verdict.ok, verdict


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.few(3)
def test_numerics_of_what_is_appended_at_each_half_between_two_levels(dtype: torch.dtype) -> None:
    halves = torch.arange(-129.0, 129.5, 0.5)
    x = torch.cat((halves, torch.tensor([1e30, torch.inf, -torch.inf, torch.nan, -0.0]))).to(dtype)
    key, value = x.repeat(3, 2, 1), x.flip(0).repeat(3, 2, 1)
    slots, shape = torch.tensor([5, -1, 2]), (2, 4, 2, len(x))
    for place in range(3):
        caches = [torch.full(shape, 99, dtype=torch.int8) for _ in range(2)]
        assert results(BlockInt8Append(), (key, value, *caches, slots, *[torch.ones(1)] * 2), place) is None
        for cache, given in zip(caches, (key, value), strict=True):
            right = given[0].float().clamp(-127, 127).round().nan_to_num(0.0).to(torch.int8)
            flat = cache.flatten(0, 1)
            assert torch.equal(flat[[5, 2]], right.expand(2, 2, -1))
            assert flat[[0, 1, 3, 4, 6, 7]].eq(99).all()
