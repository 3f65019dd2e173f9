"""Another size of what runs already: the box's implementations find their spaces, and the contracts their outputs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from registry.contract import Op, as_tuple
from registry.contracts import BOX
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.implementation import Implementation
from registry.problem import TensorSpec, Value

from ..tiers import one_of_each

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 * 2**30, 60 * 2**20, 227 * 1024, 65536)
CPU = Device("cpu", 0, "a CPU", "x86_64", 16, 2**34, 2**25)
OPS = {op.name: op for op in BOX}
SIZES = [*range(1, 70), *range(71, 600, 29), *range(601, 5000, 397), 10**6, 1_234_567]
STATIC: Mapping[str, Value] = {
    "cols": 8192,
    "k": 4096,
    "group_size": 128,
    "bits": 4,
    "symmetric": False,
    "zeros": "none",
    "act_order": False,
    "bias": False,
    "experts": 64,
    "hidden": 2048,
    "intermediate": 768,
    "activation": "silu",
    "routing": "uniform",
    "approximate": "tanh",
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "rotary_dim": 128,
    "style": "neox",
    "block_size": 16,
    "vocabulary": 32000,
    "frequency": "skewed",
    "top_k": 8,
    "batch": 16,
    "q_len": 1,
    "kv_len": 8192,
    "sequences": 16,
    "total_k": 8192,
    "kv_lora_rank": 512,
    "rope_dim": 64,
    "page": False,
    "span": False,
    "lengths": "full",
    "dtype": "bfloat16",
}
APPENDING = ("torch.native", "torch.compile", "triton.block", "cpp.heads")
"""The implementations of rotary_kv_append, for whose new tokens a cache must have room."""
TAKEN: Mapping[tuple[str, str], Mapping[str, Value]] = {
    ("gemm_int8", "torch.int8pack"): {"group_size": 4096},
    ("scaled_mm", "torch.int_mm"): {"dtype": "int8"},
    ("scaled_mm", "cublaslt.fp8"): {"dtype": "float8_e4m3fn", "out_dtype": "bfloat16", "scales": "row"},
    ("scaled_mm", "cublaslt.int8"): {"dtype": "int8"},
    ("scaled_mm", "cpp.amx"): {"dtype": "int8"},
    ("scaled_mm", "cpp.dot"): {"dtype": "int8"},
    ("attention", "torch.sdpa_efficient"): {"kv_heads": 32},
    ("attention_backward", "torch.sdpa_efficient"): {"kv_heads": 32},
    ("attention", "torch.sdpa_cudnn_masked"): {"mask": "bool"},
    ("attention_backward", "torch.sdpa_cudnn_masked"): {"mask": "bool"},
    ("attention", "flashinfer.single"): {"batch": 1},
    **{("attention_decode", f"triton.{form}_int8"): {"kv_dtype": "int8"} for form in ("whole", "split_kv")},
    ("kv_cache_append", "triton.block_int8"): {"kv_dtype": "int8"},
    **{
        ("attention_varlen", name): {"lengths": "uniform"}
        for name in ("torch.native", "torch.flash_varlen", "torch.flash_varlen_sized", "triton.flash", "cuda.wgmma")
    },
    **{
        ("attention_varlen_backward", name): {"lengths": "uniform"}
        for name in ("torch.native", "triton.flash", "cuda.wgmma")
    },
    ("top_k_top_p_sampling", "triton.split_rows"): {"top_k": True},
    **{(f"layer_norm{gradient}", f"liger.layer_norm{gradient}"): {"bias": True} for gradient in ("", "_backward")},
    **{(f"cross_entropy{gradient}", "triton.ragged"): {"cols": 50_257} for gradient in ("", "_backward")},
    **{("rotary_kv_append", name): {"kv_len": max(SIZES)} for name in APPENDING},
}
"""What those take that do not take ``STATIC``."""
CATALOG = Catalog()
LIBRARIES = {
    "humming.": "humming",
    "quack.": "quack",
    "liger.": "liger_kernel",
    "flashinfer.": "flashinfer",
    "flash_attn.fa4": "flash_attn",
    "flash_attn.fa3": "flash_attn_interface",
    "flash_attn.fa2": "flash_attn_2_cuda",
    "cublaslt.": "nvmath",
}
ABSENT = (
    *(start for start, module in LIBRARIES.items() if find_spec(module) is None),
    *(() if torch.backends.cusparselt.is_available() else ("torch.cusparselt",)),
)
"""How the names of implementations begin whose library is not installed here: these support nothing."""
KINDS = [
    (op, one)
    for op in BOX
    for one in CATALOG.implementations(op.name)
    if not one.name.startswith(ABSENT) and one.name not in ("cuda.inline", "flash_attn.fa4_split")
]


def problems(op: Op, **changed: Value) -> list[Any]:
    """Problems of all sizes; of several dynamic dimensions the last by name changes, such as kv_len."""
    *others, dynamic = sorted(op.dynamic)
    known = {**STATIC, **changed, "n": 4096}
    chosen = {name: values[0] for name, values in op.choices.items() if known.get(name) not in values}
    dims = {name: chosen[name] if name in chosen else known[name] for name in (*op.static, *others)}
    return [op.problem_of({**dims, dynamic: size}) for size in SIZES]


@pytest.mark.parametrize(
    ("op", "implementation"),
    one_of_each(KINDS, lambda op, implementation: type(implementation)),
    ids=lambda one: getattr(one, "name", ""),
)
@pytest.mark.few(20)
def test_sizes_share_spaces_and_defaults(op: Op, implementation: Implementation) -> None:
    device = CPU if implementation.name.startswith("torch.native") else H200
    if device.type not in implementation.device_types:
        device = CPU
    asked = problems(op, **TAKEN.get((op.name, implementation.name), {}))
    refused = {one: list(implementation.unsupported(one, device)) for one in asked}
    if reason := next((one for each in refused.values() for one in each if one.startswith("this CPU (")), ""):
        pytest.skip(reason)
    fit = [one for one in asked if not refused[one]]
    assert fit
    spaces = [implementation.space(one, device) for one in fit]
    defaults = [implementation.default(one, device) for one in fit]
    assert not [space.violations(config) for space, config in zip(spaces, defaults, strict=True) if config not in space]
    if spaces[0].domains:
        # by powers of two, tiles along m or programs for each SM: not one for each size
        assert len({id(space) for space in spaces}) <= 16
        assert len({tuple(config.items()) for config in defaults}) <= 16


@pytest.mark.parametrize("op", BOX, ids=lambda op: op.name)
@pytest.mark.few(20)
def test_outputs_told_by_a_rule_are_those_of_the_reference(op: Op) -> None:
    for dims in op.examples[:8]:
        values = op.draw(op.problem_of(dims), "normal", torch.Generator().manual_seed(0))
        told = op.output_specs(op.arguments(values), torch.device("cpu"))
        given = [TensorSpec.of(one) for one in as_tuple(op.reference(*values))]
        assert [(one.shape, one.dtype, one.strides) for one in told.values()] == [
            (one.shape, one.dtype, one.strides) for one in given
        ]


@pytest.mark.parametrize("name", ["vector_add", "square", "gelu", "square_backward", "gelu_backward"])
def test_outputs_of_elementwise_ops_follow_the_strides_of_their_inputs(name: str) -> None:
    op = OPS[name]
    for x in (
        torch.randn(3, 5).T,
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(4, 6)[:, ::2],
    ):
        values = op.bind(tuple(x for one in op.parsed.parameters if one.kind == "Tensor"), {})
        (told,) = op.output_specs(op.arguments(values), torch.device("cpu")).values()
        given = op.reference(*values)
        assert isinstance(given, torch.Tensor)
        assert (told.shape, told.strides) == (tuple(given.shape), given.stride())
