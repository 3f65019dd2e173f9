"""attention_varlen's Triton kernel without a GPU: what it compiles to, its tiles, and what it does not take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import pytest
import torch

from registry.artifact import Signature
from registry.contracts import ATTENTION_VARLEN as OP
from registry.device import Device
from registry_triton.attention.varlen import PackedAttention, most_tiles

from ..tiers import THOROUGH
from .test_triton import A100, H200, PACKED_SEQUENCES, default_variants, problem_of

FORM = PackedAttention()
FORMS: list[tuple[Mapping[str, Any], str]] = [
    ({}, "float16"),
    ({"head_dim": 64}, "bfloat16"),
    ({"span": 1024}, "bfloat16"),
    ({"causal": False, "span": 1024, "kv_heads": 32}, "bfloat16"),
    ({"causal": False, "head_dim": 96}, "bfloat16"),
]


# test_triton.py compiles the usual form for the H200
@pytest.mark.parametrize(
    ("dims", "dtype", "device"),
    [
        pytest.param(dims, dtype, device, id=f"{dims}-{dtype}-{device.architecture}", marks=THOROUGH if dims else ())
        for dims, dtype in FORMS
        for device in (H200, A100)
    ],
)
@pytest.mark.few(1)
def test_every_form_compiles_without_spilling(dims: Mapping[str, Any], dtype: str, device: Device) -> None:
    problem = problem_of(OP.name, {**PACKED_SEQUENCES, **dims}, dtype)
    (variant,) = default_variants(FORM, problem, device)
    resources = FORM.compile(variant, device.target).resources
    assert resources["spill_bytes"] == 0
    assert resources["shared_bytes"] <= device.shared_bytes


@pytest.mark.parametrize("rows", [16, 64, 128])
def test_the_tiles_are_enough_for_any_lengths(rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for sequences in (1, 2, 7, 100):
        for most in (2, 20, 300):
            lengths = torch.randint(most, (sequences,), generator=generator).tolist()
            begin, tiles = 0, most_tiles(sum(lengths), sequences, rows)
            for place, length in enumerate(lengths):
                # a sequence's first tile comes after the last of the one before it
                first, begin = begin // rows + place, begin + length
                assert first + math.ceil(length / rows) <= begin // rows + place + 1
            assert begin // rows + sequences <= tiles


def test_one_compiled_kernel_serves_calls_of_any_lengths_and_scales() -> None:
    config, keys = FORM.default(problem_of(OP.name, PACKED_SEQUENCES), H200), set()
    for lengths, scale in (([16], None), ([3, 0, 45], 0.3), ([1] * 33, 0.1)):
        total, ends = sum(lengths), torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        q, k = (torch.ones(total, heads, 128, dtype=torch.bfloat16) for heads in (32, 8))
        arguments = OP.arguments(OP.bind((q, k, k, ends, ends, True, scale), {}))
        known = Signature(arguments, OP.output_specs(arguments, torch.device("cpu")), {})
        (variant,) = FORM.variants(OP.pose(arguments), config, H200, known)
        keys.add(variant.key)
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("dims", "dtype", "reason"),
    [
        ({"head_dim": 264}, "bfloat16", "head_dim=264 (limit 256)"),
        ({}, "float64", "dtype float64 (supported: float32, float16, bfloat16)"),
        ({"total_q": 2**31 - 1}, "bfloat16", "up to 4294967776 programs (limit 2147483647)"),
    ],
)
def test_what_it_does_not_take_is_told(dims: Mapping[str, Any], dtype: str, reason: str) -> None:
    problem = problem_of(OP.name, {**PACKED_SEQUENCES, **dims}, dtype)
    assert reason in list(FORM.unsupported(problem, H200))


def test_offsets_and_heads_that_are_apart_are_told() -> None:
    q, ends = torch.ones(5, 2, 16), torch.tensor([0, 9, 5, 9], dtype=torch.int32)[::2]
    problem = OP.pose(OP.arguments(OP.bind((q, q, torch.ones(5, 16, 2).mT, ends, ends), {})))
    told = list(FORM.unsupported(problem, H200))
    assert "the elements of a head of v are not neighbours" in told
    assert {f"cu_seqlens_{one} is not contiguous" for one in "qk"} <= set(told)
