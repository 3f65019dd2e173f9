"""The Triton plugin without a GPU: spaces, defaults, reasons, and that everything compiles for three targets."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from registry.arguments.inputs import arguments_of
from registry.artifact import Signature, Variant
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.implementation import Implementation
from registry.problem import Arguments, Problem, TensorSpec, Traits, Value
from registry.space import Config
from registry_triton.gemm_int4_split import _SplitInt4

from ..tiers import THOROUGH, one_of_each
from ..triton_forms import FORMS, OPS

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 * 2**30, 60 * 2**20, 227 * 1024, 65536)
A100 = Device("cuda", 0, "NVIDIA A100", "sm_80", 108, 80 * 2**30, 40 * 2**20, 163 * 1024, 65536)
MI300 = Device("cuda", 0, "AMD Instinct MI300X", "gfx942", 304, 192 * 2**30, 4 * 2**20, 64 * 1024, 131072, 64)

INT4 = {"n": 4096, "k": 4096, "group_size": 128, "bits": 4, "symmetric": False}
PACKED = {"n": 4096, "k": 4096, "group_size": 128, "zeros": "none", "act_order": False, "bias": True}
ROWS = {"k": 7168, "group_size": 128, "out_dtype": "int8", "scale": False}
SCALED = {"n": 4096, "k": 7168, "scales": "block", "bias": True, "out_dtype": "bfloat16", "dtype": "int8"}
DENSE = {"n": 4096, "k": 4096, "bias": True}
EXPERTS = {"n": 1536, "k": 2048, "experts": 8, "routing": "uniform"}
SCALED_EXPERTS = {**EXPERTS, "out_dtype": "bfloat16", "dtype": "int8"}
MOE = {
    "hidden": 1024, "intermediate": 512, "experts": 8, "top_k": 2, "activation": "silu", "routing": "uniform",
}  # fmt: skip
AFFINE = {"weight": True, "bias": True}
MEAN = {"reduction": "mean", "weight": False}
LINEAR_LOSS: Mapping[str, Value] = {"reduction": "mean", "bias": True}
ATTENTIONS = ("attention", "attention_backward")
HEADS = {
    "heads": 32, "kv_heads": 8, "head_dim": 128, "causal": True, "mask": "none", "softcap": False, "span": False,
}  # fmt: skip
PACKED_SEQUENCES = {
    "sequences": 16, "total_q": 8192, "total_k": 8192, "heads": 32, "kv_heads": 8, "head_dim": 128, "causal": True,
    "softcap": False, "span": False, "lengths": "uniform",
}  # fmt: skip
ROUTER = {"renormalize": True, "scoring": "softmax"}
DECODE = {
    "batch": 64, "heads": 32, "kv_heads": 8, "q_len": 1, "kv_len": 8192, "head_dim": 128, "page": False, "span": False,
    "kv_dtype": "auto", "softcap": False, "lengths": "full",
}  # fmt: skip
MLA = {
    "batch": 64, "heads": 128, "kv_len": 8192, "kv_lora_rank": 512, "rope_dim": 64, "page": 64, "lengths": "full",
}  # fmt: skip
BESIDE_ROWS: Mapping[str, Mapping[str, Any]] = {
    "layer_norm": AFFINE, "fused_add": {"weight": True}, "cross_entropy": MEAN,
    "fused_linear": {"k": 64, **LINEAR_LOSS},
}  # fmt: skip
"""Dimensions beside rows and cols, by the start of an op's name."""
TYPICAL: Mapping[str, Mapping[str, Any]] = {
    "vector_add triton.block": {"n": 2**24},
    "square triton.block": {"n": 2**24},
    "gelu triton.block": {"n": 2**24, "approximate": "none"},
    "softmax triton.row": {"rows": 4096, "cols": 16384},
    "softmax triton.online": {"rows": 8192, "cols": 128256},
    "softmax triton.split": {"rows": 1, "cols": 151936},
    "rms_norm triton.row": {"rows": 4096, "cols": 4096},
    "rms_norm triton.looped": {"rows": 4096, "cols": 128256},
    "fused_add_rms_norm triton.row": {"rows": 4096, "cols": 4096, "weight": True},
    "fused_add_rms_norm triton.looped": {"rows": 4096, "cols": 128256, "weight": True},
    "gemm_int4 triton.gemm": {"m": 4096, **INT4},
    "gemm_int4 triton.splitk": {"m": 16, **INT4},
    "gemm_int4 triton.gemv": {"m": 1, **INT4},
    "gemm_int4 triton.dequantized": {"m": 4096, **INT4},
    "square_backward triton.block": {"n": 2**24},
    "gelu_backward triton.block": {"n": 2**24, "approximate": "tanh"},
    "softmax_backward triton.row": {"rows": 4096, "cols": 8192},
    "softmax_backward triton.looped": {"rows": 8192, "cols": 128256},
    "rms_norm_backward triton.row": {"rows": 4096, "cols": 8192},
    "rms_norm_backward triton.columns": {"rows": 4096, "cols": 28672},
    "layer_norm triton.row": {"rows": 4096, "cols": 4096, **AFFINE},
    "layer_norm triton.looped": {"rows": 4096, "cols": 128256, **AFFINE},
    "layer_norm_backward triton.row": {"rows": 4096, "cols": 8192, **AFFINE},
    "layer_norm_backward triton.columns": {"rows": 4096, "cols": 28672, **AFFINE},
    "embedding triton.block": {"rows": 8192, "cols": 4096, "vocabulary": 128256, "frequency": "skewed"},
    "embedding_backward triton.entries": {"rows": 8192, "cols": 4096, "vocabulary": 128256, "frequency": "skewed"},
    "embedding_backward triton.sorted": {"rows": 8192, "cols": 4096, "vocabulary": 128256, "frequency": "skewed"},
    **{
        f"topk_softmax{gradient} triton.row": {"tokens": 8192, "experts": 128, "top_k": 8, **ROUTER}
        for gradient in ("", "_backward")
    },
    "kv_cache_append triton.block": {
        "tokens": 8192,
        "kv_heads": 8,
        "head_dim": 128,
        "block_size": 16,
        "kv_dtype": "auto",
    },
    "rotary_kv_append triton.block": {
        "batch": 16,
        "heads": 32,
        "kv_heads": 8,
        "q_len": 1,
        "kv_len": 4096,
        "head_dim": 128,
        "rotary_dim": 128,
        "style": "neox",
        "positions": False,
    },
    "attention_decode triton.whole": DECODE,
    "attention_decode triton.split_kv": {**DECODE, "batch": 1, "page": 16},
    "top_k_top_p_sampling triton.looped": {"rows": 64, "cols": 128256, "top_k": True, "top_p": True},
    "top_k_top_p_sampling triton.split_rows": {"rows": 1, "cols": 128256, "top_k": True, "top_p": True},
    "mla_decode triton.whole": {**MLA, "page": False},
    "mla_decode triton.split_kv": {**MLA, "batch": 1},
    "rotary_embedding triton.block": {
        "tokens": 8192,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "rotary_dim": 128,
        "style": "neox",
    },
    **{f"silu_and_mul{gradient} triton.block": {"rows": 8192, "cols": 14336} for gradient in ("", "_backward")},
    **{
        f"gelu_and_mul{gradient} triton.block": {"rows": 8192, "cols": 14336, "approximate": form}
        for gradient, form in (("", "tanh"), ("_backward", "none"))
    },
    "cross_entropy triton.row": {"rows": 4096, "cols": 4096, **MEAN},
    "cross_entropy triton.online": {"rows": 8192, "cols": 128256, **MEAN},
    "cross_entropy triton.split": {"rows": 16, "cols": 128256, **MEAN},
    "cross_entropy triton.ragged": {"rows": 8192, "cols": 50257, **MEAN},
    "cross_entropy_backward triton.tile": {"rows": 8192, "cols": 128256, **MEAN},
    "cross_entropy_backward triton.ragged": {"rows": 8192, "cols": 50257, **MEAN},
    **{
        f"fused_linear_cross_entropy{gradient} triton.chunked": {"rows": 8192, "cols": 128256, "k": 64, **LINEAR_LOSS}
        for gradient in ("", "_backward", "_gradients")
    },
    **{
        f"attention{gradient} triton.flash": {"batch": 2, "q_len": 2048, "kv_len": 2048, **HEADS}
        for gradient in ("", "_backward")
    },
    "linear triton.gemm": {"m": 4096, **DENSE},
    "linear triton.splitk": {"m": 16, **DENSE},
    "linear triton.gemv": {"m": 1, **DENSE},
    "gemm_sparse24 triton.gemm": {"m": 4096, **DENSE},
    "gemm_sparse24 triton.splitk": {"m": 16, **DENSE},
    "gemm_sparse24 triton.gemv": {"m": 1, **DENSE},
    "grouped_gemm triton.gemm": {"m": 4096, **EXPERTS},
    "fused_moe triton.gemm": {"tokens": 1024, **MOE},
    "fused_moe triton.gemv": {"tokens": 8, **MOE},
    **{
        f"grouped_gemm_int4 triton.{form}": {"m": m, **EXPERTS, "group_size": 128, "zeros": "integer"}
        for form, m in (("gemm", 4096), ("dequantized", 65536), ("grouped_mm", 65536))
    },
    "grouped_gemm_backward triton.gemm": {"m": 16384, **EXPERTS},
    **{
        f"gemm_{kind} {form}": {"m": m, **PACKED}
        for kind in ("int8", "int2", "int1", "w4a16", "nf4")
        for form, m in (("triton.gemm", 4096), ("triton.splitk", 16), ("triton.gemv", 1), ("triton.dequantized", 4096))
    },
    "quantize_per_token triton.row": {"m": 4096, **ROWS},
    "quantize_per_token triton.pieces": {"m": 4096, **ROWS, "k": 18432},
    "gemm_w4a8 triton.gemm": {"m": 4096, **PACKED, "activation": "int8", "static": False},
    "gemm_w8a8 triton.gemm": {"m": 64, **PACKED, "activation": "int8", "static": False},
    "scaled_mm triton.gemm": {"m": 4096, **SCALED},
    "grouped_scaled_mm triton.gemm": {"m": 4096, **SCALED_EXPERTS},
    "scaled_mm triton.splitk": {"m": 16, **SCALED},
    **{f"attention_varlen{gradient} triton.flash": PACKED_SEQUENCES for gradient in ("", "_backward")},
    "kv_cache_append triton.block_int8": {
        "tokens": 8192,
        "kv_heads": 8,
        "head_dim": 128,
        "block_size": 16,
        "kv_dtype": "int8",
    },
    "attention_decode triton.whole_int8": {**DECODE, "kv_dtype": "int8"},
    "attention_decode triton.split_kv_int8": {**DECODE, "batch": 1, "page": 16, "kv_dtype": "int8"},
    **{
        f"apply_rotary{gradient} triton.block": {
            "tokens": 8192,
            "heads": 32,
            "kv_heads": 8,
            "head_dim": 128,
            "rotary_dim": part,
            "style": style,
        }
        for gradient, part, style in (("", 128, "neox"), ("_backward", 64, "gptj"))
    },
}
IMPLEMENTATIONS = {f"{op} {one.name}": one for op, forms in FORMS.items() for one in forms}


def _op_of(key: str) -> str:
    return key.partition(" ")[0]


ON_ONE = (
    "gelu_and_mul",
    "gemm_nf4",
    "gemm_sparse24 triton.gemm",
    "gemm_w8a8",
    "grouped_gemm_backward",
    "grouped_gemm_int4",
    "layer_norm_backward triton.columns",
    "scaled_mm triton.splitk",
)
OTHERS = [key for key in TYPICAL if not key.startswith(ON_ONE)]
SLOW = ("attention_backward", "attention_varlen_backward")
"""Compiled for seconds; its numbers are checked in the interpreter, and it is compiled before a release."""
SPILLED = {
    "attention_backward triton.flash": 32,
    "attention_varlen_backward triton.flash": 32,
    "mla_decode triton.whole": 160,
    "mla_decode triton.split_kv": 160,
    "top_k_top_p_sampling triton.looped": 32,
}
"""Bytes a thread that may spill: sums fill the registers of Hopper's default.

In a step of mla_decode a thread reads 12 words again, beside 74 products of tensor cores.
"""
ELSEWHERE = {
    A100: ("softmax triton.row", "gemm_int4 triton.gemv"),
    MI300: ("rms_norm triton.looped", "linear triton.gemm"),
}
"""What every change compiles for other GPUs than the H200."""
LIKE_OTHERS = (
    *(f"gemm_nf4 triton.{form}" for form in ("splitk", "gemv", "dequantized")),
    "gemm_w8a8",
    "gemm_sparse24 triton.splitk",
    "linear triton.splitk",
    "scaled_mm triton.splitk",
    "grouped_gemm_backward",
    "attention_decode triton.whole",
    "mla_decode triton.whole",
    "cross_entropy",
    "grouped_gemm_int4 triton.dequantized",
    "silu_and_mul",
)
"""What is a kernel that another compiles, too: with another width of levels, a tile's for a part of k, in one part,
with another gate, as two of others. test_cross_entropy.py compiles those of cross_entropy, for each reduction.

The table of levels is triton.gemm's as well, and the forms are those of gemm_int8.
"""
MIXED = one_of_each([key for key, one in IMPLEMENTATIONS.items() if one.mixed], _op_of)
WIDE = {param.values[0] for param in MIXED if not param.marks}
"""What every change compiles with a weight of float32, which takes no fewer registers than one of halves."""
COMPILED = [
    pytest.param(
        key,
        device,
        id=f"{key}-{device.architecture}",
        marks=THOROUGH
        if key not in ELSEWHERE.get(device, TYPICAL)
        or key.startswith((*LIKE_OTHERS, *SLOW))
        or (device is H200 and key in WIDE)
        else (),
    )
    for device, keys in ((H200, TYPICAL), (A100, OTHERS[::2]), (MI300, OTHERS[1::2]))
    for key in keys
    if not key.startswith(("gemm_int2", "gemm_int1", "gemm_w4a16"))
]
"""On the H200 and, in turn, on one of the others. Of a family one op: gemm_int8. Others differ in a constant, the width
of a level; gemm_nf4 has a table. The kernels of a grouped product and of its gradients are alike; gemm_sparse24 and
scaled_mm have one for tiles and for split-K, gemm_w4a8 and gemm_w8a8 one with another width."""
LLM_ROWS = [{"rows": rows, "cols": cols} for rows in (1, 64, 8192) for cols in (128, 1024, 4096, 16384, 32000, 151936)]

EMBEDDINGS: list[Mapping[str, Any]] = [
    {"rows": rows, "cols": cols, "vocabulary": 32000, "frequency": "uniform"}
    for rows, cols in ((1, 4096), (64, 1), (8192, 768), (16384, 16384))
]
DECODER_SIZES: Mapping[str, list[Mapping[str, Any]]] = {
    **{
        op: [{**TYPICAL[f"{op} triton.block"], "tokens": tokens} for tokens in (1, 64, 8192)]
        for op in ("rotary_embedding", "kv_cache_append", "apply_rotary", "apply_rotary_backward")
    },
    **{
        op: [
            {**HEADS, "batch": batch, "q_len": rows, "kv_len": keys, "head_dim": width}
            for batch, rows, keys in ((1, 1, 1), (1, 64, 8192), (4, 2048, 2048), (1, 33, 70))
            for width in (8, 64, 80, 128, 256)
        ]
        for op in ATTENTIONS
    },
    "rotary_kv_append": [
        {**TYPICAL["rotary_kv_append triton.block"], **sizes}
        for sizes in (
            {"batch": 1, "heads": 1, "kv_heads": 1},
            {"batch": 64, "head_dim": 80, "rotary_dim": 20, "style": "gptj", "positions": True},
            {"q_len": 1024},
        )
    ],
    "embedding": EMBEDDINGS,
    "embedding_backward": EMBEDDINGS,
    **{
        f"topk_softmax{gradient}": [
            {"tokens": tokens, "experts": experts, "top_k": top_k, **ROUTER}
            for tokens, experts, top_k in ((1, 8, 2), (64, 60, 4), (8192, 256, 8), (3, 1, 1), (5, 4096, 64))
        ]
        for gradient in ("", "_backward")
    },
    "fused_moe": [
        *({**MOE, "tokens": tokens} for tokens in (1, 64, 512, 4096, 65536)),
        {**MOE, "tokens": 5, "hidden": 33, "intermediate": 24, "experts": 3, "top_k": 3, "activation": "gelu"},
    ],
    "grouped_scaled_mm": [
        *({**SCALED_EXPERTS, "m": m} for m in (1, 64, 256, 512, 4096, 65536)),
        {**SCALED_EXPERTS, "m": 5, "n": 33, "k": 24, "experts": 3, "routing": "one_expert"},
    ],
    "attention_decode": [
        *({**DECODE, "batch": batch, "kv_len": kv_len} for batch in (1, 16, 256) for kv_len in (16, 1024, 131072)),
        {**DECODE, "page": 16, "head_dim": 512, "kv_heads": 1},
        {**DECODE, "q_len": 16, "kv_dtype": "float8_e4m3fn"},
        *({**DECODE, "page": page, "kv_dtype": "int8"} for page in (False, 16)),
        {**DECODE, "head_dim": 24, "heads": 8, "span": 1024},
    ],
    **{
        f"attention_varlen{gradient}": [
            {**PACKED_SEQUENCES, "sequences": sequences, "total_q": rows, "total_k": keys, "head_dim": width}
            for sequences, rows, keys in ((1, 1, 1), (200, 64, 8192), (16, 65536, 65536), (3, 33, 70))
            for width in (8, 64, 80, 128, 256)
        ]
        for gradient in ("", "_backward")
    },
    "top_k_top_p_sampling": [
        {"rows": rows, "cols": cols, "top_k": True, "top_p": cols > 7}
        for rows in (1, 256)
        for cols in (1, 7, 1000, 32000, 151936)
    ],
    "mla_decode": [
        *({**MLA, "batch": batch, "kv_len": kv_len} for batch in (1, 16, 256) for kv_len in (64, 1024, 131072)),
        *({**MLA, "heads": heads, "page": False} for heads in (1, 16, 40)),
        {**MLA, "kv_lora_rank": 100, "rope_dim": 20, "page": 16},
    ],
}


def problem_of(op: str, dims: Mapping[str, Any], dtype: str = "bfloat16") -> Problem:
    return OPS[op].problem_of({"dtype": dtype, **dims})


def signature(problem: Problem, implementation: Implementation, config: Config, device: Device) -> Signature:
    """Specs of a problem's arguments, without data: a tensor of the real size is not needed to compile for it."""
    op = OPS[problem.op]
    small = {**problem.dims, **dict.fromkeys(op.dynamic, 2 * int(problem.dims.get("page", 0)) or 2)}
    arguments = arguments_of(op, Problem(op.name, small))
    outputs = op.output_specs(arguments, torch.device("cpu"))
    aligned = {
        k: TensorSpec.contiguous(v.shape, v.dtype) if isinstance(v, TensorSpec) else v
        for k, v in arguments.values.items()
    }
    return Signature(Arguments(op.name, aligned), outputs, implementation.scratch(problem, config, device))


def default_variants(implementation: Implementation, problem: Problem, device: Device) -> tuple[Variant, ...]:
    config = implementation.default(problem, device)
    return implementation.variants(problem, config, device, signature(problem, implementation, config, device))


def test_every_implementation_has_a_typical_problem() -> None:
    assert set(IMPLEMENTATIONS) == set(TYPICAL)


@pytest.mark.parametrize(("key", "device"), COMPILED)
@pytest.mark.few(4)
def test_the_default_compiles_without_spilling(key: str, device: Device) -> None:
    implementation = IMPLEMENTATIONS[key]
    problem = problem_of(key.partition(" ")[0], TYPICAL[key])
    assert not list(implementation.unsupported(problem, device))
    for variant in default_variants(implementation, problem, device):
        artifact = implementation.compile(variant, device.target)
        assert artifact.resources["spill_bytes"] <= SPILLED.get(key, 0)
        assert artifact.resources["shared_bytes"] <= device.shared_bytes


@pytest.mark.parametrize("key", MIXED)
@pytest.mark.few(1)
def test_halves_beside_float32_compile(key: str) -> None:
    op, implementation = OPS[key.partition(" ")[0]], IMPLEMENTATIONS[key]
    problem = problem_of(op.name, TYPICAL[key])
    config = implementation.default(problem, H200)
    known = signature(problem, implementation, config, H200)
    wide = {name: TensorSpec.contiguous(known.arguments.tensor(name).shape, torch.float32) for name in op.alike}
    arguments = Arguments(op.name, {**known.arguments.values, **wide})
    mixed = Signature(arguments, op.output_specs(arguments, torch.device("cpu")), known.scratch)
    for variant in implementation.variants(problem, config, H200, mixed):
        assert implementation.compile(variant, H200.target).resources["spill_bytes"] == 0


@pytest.mark.parametrize(
    ("key", "needs"),
    one_of_each(
        itertools.product(
            [key for key in TYPICAL if key.startswith("rms_norm_backward")], [(True, False), (False, True)]
        ),
        lambda key, needs: key,
    ),
    ids=str,
)
@pytest.mark.few(1)
def test_one_gradient_alone_compiles(key: str, needs: tuple[bool, bool]) -> None:
    implementation, whole = IMPLEMENTATIONS[key], problem_of("rms_norm_backward", TYPICAL[key])
    config = implementation.default(whole, H200)
    known = signature(whole, implementation, config, H200).arguments.values
    arguments = Arguments(whole.op, {**known, "need_x": needs[0], "need_weight": needs[1]})
    problem = Problem(whole.op, whole.dims, Traits(arguments))
    outputs = OPS[whole.op].output_specs(arguments, torch.device("cpu"))
    made = Signature(arguments, outputs, implementation.scratch(problem, config, H200))
    variants = implementation.variants(problem, config, H200, made)
    assert any("sum_partial" in variant.kernel for variant in variants) == needs[1]
    for variant in variants:
        assert implementation.compile(variant, H200.target).resources["spill_bytes"] == 0


@pytest.mark.parametrize("key", one_of_each(TYPICAL, _op_of))
@pytest.mark.few(20)
def test_another_row_count_is_no_other_variant(key: str) -> None:
    op, implementation = key.partition(" ")[0], IMPLEMENTATIONS[key]
    problem = problem_of(op, TYPICAL[key])
    config = implementation.default(problem, H200)
    keys = set()
    for size in (1, 3, 16):
        dims = {**TYPICAL[key], **{name: problem.dims[name] // size or 1 for name in OPS[op].dynamic}}
        if "m" in dims:
            dims["m"] = max(1, problem.m - size)
        if "page" in dims:
            dims["kv_len"] = problem.kv_len - int(TYPICAL[key]["page"] or 16) * size
        other = problem_of(op, dims)
        variants = implementation.variants(other, config, H200, signature(other, implementation, config, H200))
        keys.add(tuple(variant.key for variant in variants))
    assert len(keys) == 1


@pytest.mark.parametrize("device", [H200, MI300, Device.of("cpu")], ids=lambda device: device.architecture[:6])
def test_spaces_are_small_and_hold_their_default(device: Device) -> None:
    for key, implementation in IMPLEMENTATIONS.items():
        op = key.partition(" ")[0]
        large = ("attention", "fused_moe", "gemm", "grouped", "linear", "mla", "scaled")
        most = 192 if op.startswith(large) and op not in ("grouped_scaled_mm", "attention_varlen") else 60
        for problem in _problems(op):
            if list(implementation.unsupported(problem, device)):
                continue
            space = implementation.space(problem, device)
            assert 1 <= len(space) <= most, (key, problem, len(space))
            assert implementation.default(problem, device) in space
            assert implementation.preference(problem, device) > -1


def _problems(op: str) -> list[Problem]:
    dims: list[Mapping[str, Any]] = [{"n": n, "approximate": "tanh"} for n in (1, 5000, 2**20, 2**28)]
    if op in ("vector_add", "square", "square_backward"):
        dims = [{"n": point["n"]} for point in dims]
    elif op.startswith(("softmax", "rms_norm", *BESIDE_ROWS)):
        beside = next((more for start, more in BESIDE_ROWS.items() if op.startswith(start)), {})
        dims = [{**point, **beside} for point in (*LLM_ROWS, {"rows": 1, "cols": 1}, {"rows": 3, "cols": 70001})]
    elif op in DECODER_SIZES:
        dims = DECODER_SIZES[op]
    elif "_and_mul" in op:
        form = {"approximate": "none"} if op.startswith("gelu") else {}
        dims = [{**point, **form} for point in (*LLM_ROWS, {"rows": 1, "cols": 1}, {"rows": 3, "cols": 70001})]
    elif op == "gemm_int4":
        dims = [{**INT4, "m": m, "group_size": g} for m in (1, 4, 16, 64, 512, 4096) for g in (32, 64, 128, 4096)]
        dims.append({**INT4, "m": 5, "n": 33, "k": 24, "group_size": 24})
    elif op in ("linear", "gemm_sparse24"):
        dims = [{**DENSE, "m": m} for m in (1, 4, 16, 64, 512, 4096)]
        dims.append({"m": 5, "n": 33, "k": 24, "bias": False})
    elif op.startswith("gemm"):
        sizes = (16, 128) if op == "gemm_nf4" else (16, 128, 4096)
        dims = [{**PACKED, "m": m, "group_size": size} for m in (1, 16, 64, 4096) for size in sizes]
        dims.append({**PACKED, "m": 5, "n": 33, "k": 48, "group_size": 48})
        if op.endswith("a8"):
            dims = [{**point, "activation": "int8", "static": False} for point in dims if point["group_size"] > 16]
    elif op == "quantize_per_token":
        dims = [{**ROWS, "m": 64, "k": k, "group_size": size} for k in (256, 5120, 28672) for size in (k, 128)]
        dims.append({**ROWS, "m": 3, "k": 1, "group_size": 1})
    elif op == "scaled_mm":
        dims = [{**SCALED, "m": m, "scales": scales} for m in (1, 16, 64, 4096) for scales in ("row", "block")]
        dims.append({**SCALED, "m": 5, "n": 33, "k": 24})
    elif op.startswith("grouped_gemm"):
        dims = [{**EXPERTS, "m": m} for m in (1, 64, 512, 4096, 65536)]
        dims.append({"m": 5, "n": 33, "k": 24, "experts": 3, "routing": "one_expert"})
        if op.endswith("int4"):
            dims = [{**point, "group_size": size, "zeros": "none"} for point in dims for size in (32, int(point["k"]))]
    return [problem_of(op, point, dtype) for point in dims for dtype in ("bfloat16", "float16")]


def test_every_problem_of_the_box_has_an_implementation() -> None:
    for op, forms in FORMS.items():
        for problem in _problems(op):
            assert any(not list(one.unsupported(problem, H200)) for one in forms), problem


@pytest.mark.parametrize(
    ("key", "dims", "traits", "reason"),
    [
        (
            "softmax triton.row",
            {"rows": 4, "cols": 65537},
            {},
            "a row of 65537 does not fit in registers (limit 65536)",
        ),
        ("softmax triton.row", {"rows": 4, "cols": 8}, {"contiguous": False}, "a tensor is not contiguous"),
        (
            "softmax_backward triton.row",
            {"rows": 4, "cols": 32769},
            {},
            "a row of 32769 does not fit in registers (limit 32768)",
        ),
        (
            "rms_norm_backward triton.row",
            {"rows": 4, "cols": 8193},
            {},
            "a row of 8193 does not fit in registers four times (limit 8192)",
        ),
        ("softmax triton.split", {"rows": 9999, "cols": 8192}, {}, "9999 rows keep every SM busy"),
        ("softmax triton.split", {"rows": 1, "cols": 4096}, {}, "a row of 4096 is too short to split"),
        ("gemm_int4 triton.gemv", {**INT4, "m": 5}, {}, "m=5 rows are too many without tensor cores (limit 4)"),
        ("gemm_int4 triton.splitk", {**INT4, "m": 513}, {}, "m=513 keeps every SM busy"),
        ("linear triton.gemv", {**DENSE, "m": 5}, {}, "m=5 rows are too many without tensor cores (limit 4)"),
        ("linear triton.splitk", {**DENSE, "m": 129}, {}, "m=129 keeps every SM busy"),
        (
            "grouped_gemm_int4 triton.dequantized",
            {"m": 65536, "n": 28672, "k": 4096, "experts": 64, "group_size": 128, "zeros": "none"},
            {},
            "the weights written out take 14336 MiB (limit ",
        ),
    ],
)
def test_reasons_are_told(key: str, dims: Mapping[str, Any], traits: Mapping[str, Any], reason: str) -> None:
    problem = Problem(key.partition(" ")[0], {**dims, "dtype": "bfloat16"}, traits)
    (found,) = IMPLEMENTATIONS[key].unsupported(problem, H200)
    assert found.startswith(reason)


@pytest.mark.parametrize(
    "key", one_of_each([key for key in TYPICAL if key.startswith(("scaled", "quantize", "grouped_scaled"))], _op_of)
)
@pytest.mark.few(1)
def test_float8_compiles_where_a_gpu_has_it_and_is_refused_elsewhere(key: str) -> None:
    implementation = IMPLEMENTATIONS[key]
    narrow = {"out_dtype" if key.startswith("quantize") else "dtype": "float8_e4m3fn"}
    problem = problem_of(key.partition(" ")[0], {**TYPICAL[key], **narrow})
    for variant in default_variants(implementation, problem, H200):
        assert implementation.compile(variant, H200.target).resources["spill_bytes"] == 0
    for device, told in ((A100, "compute capability 8.0"), (MI300, "gfx942")):
        (reason,) = implementation.unsupported(problem, device)
        assert reason.startswith(f"float8_e4m3fn on {told}")


def test_all_reasons_are_told_at_once() -> None:
    problem = Problem("softmax", {"rows": 1, "cols": 70000, "dtype": "float64"}, {"contiguous": False})
    assert len(list(IMPLEMENTATIONS["softmax triton.row"].unsupported(problem, H200))) == 3


def test_the_declared_heuristic_follows_the_shape() -> None:
    def best(op: str, dims: Mapping[str, Any]) -> str:
        problem = problem_of(op, dims)
        able = [one for one in FORMS[op] if not list(one.unsupported(problem, H200))]
        return max(able, key=lambda one: one.preference(problem, H200)).name

    assert best("softmax", {"rows": 4096, "cols": 4096}) == "triton.row"
    assert best("softmax", {"rows": 4096, "cols": 128256}) == "triton.online"
    assert best("softmax", {"rows": 1, "cols": 128256}) == "triton.split"
    assert best("rms_norm", {"rows": 4096, "cols": 8192}) == "triton.row"
    assert best("softmax_backward", {"rows": 4096, "cols": 128256}) == "triton.looped"
    assert best("layer_norm", {"rows": 4096, "cols": 8192, **AFFINE}) == "triton.row"
    assert best("rms_norm_backward", {"rows": 4096, "cols": 8192}) == "triton.row"
    assert best("rms_norm_backward", {"rows": 4096, "cols": 28672}) == "triton.columns"
    assert [best("gemm_int4", {**INT4, "m": m}) for m in (1, 16, 96, 256)] == [
        "triton.gemv",
        "triton.splitk",
        "triton.gemm",
        "triton.dequantized",
    ]
    dims = {**EXPERTS, "group_size": 128, "zeros": "integer"}
    assert [best("grouped_gemm_int4", {**dims, "m": m}) for m in (1, 1024, 65536)] == [
        "triton.gemm",
        "triton.gemm",
        "triton.grouped_mm",
    ]


def test_a_split_product_without_its_grid_and_constants_cannot_be_made() -> None:
    incomplete: Any = type("Incomplete", (_SplitInt4,), {"grid": lambda *_: (1,)})
    with pytest.raises(TypeError, match=r"abstract method.* constants"):
        incomplete()


def test_the_fingerprint_covers_the_kernels_module() -> None:
    names = {
        module.__name__ for module in IMPLEMENTATIONS["softmax triton.row"].sources() if not isinstance(module, str)
    }
    assert names == {
        "registry_triton.softmax", "registry_triton.kernels.softmax", "registry_triton.rows", "registry_triton.support",
    }  # fmt: skip


@pytest.mark.parametrize("op", [*ATTENTIONS, "attention_varlen", "attention_varlen_backward"])
def test_attention_in_float32_has_configurations_wherever_it_is_supported(op: str) -> None:
    # an sm_89 has 99 KiB of shared memory a block, too few for heads of 128 in parts of tf32
    small = replace(A100, name="NVIDIA L4", architecture="sm_89", shared_bytes=99 * 1024)
    implementation = next(one for one in Catalog().implementations(op) if one.name == "triton.flash")
    contract = Catalog().op(op)
    (dims, *_) = contract.examples
    lengths = {name: 4096 for name in ("q_len", "kv_len", "total_q", "total_k") if name in dims}
    for device in (H200, A100, small):
        for head_dim in (16, 64, 128, 192, 256):
            problem = contract.problem_of({**dims, **lengths, "head_dim": head_dim, "dtype": "float32"})
            assert not list(implementation.unsupported(problem, device))
            config = implementation.default(problem, device)
            assert config in implementation.space(problem, device).configs
            launches = implementation.launch(problem, config, device)
            precisions = {
                one.constants["PRECISION"]
                for one in (launches if isinstance(launches, list | tuple) else [launches])
                if "PRECISION" in one.constants
            }
            fits = device == H200 or head_dim <= (128 if device == A100 else 64)
            assert precisions == {"tf32x3" if fits else "ieee"}


@pytest.mark.parametrize("op", ["attention_backward", "attention_varlen_backward"])
def test_eight_warps_have_128_rows_of_a_gradient_in_parts_of_tf32(op: str) -> None:
    # of 64 rows they spilled 688 bytes a thread on Hopper, and products read beyond the block's shared memory
    implementation = next(one for one in Catalog().implementations(op) if one.name == "triton.flash")
    contract = Catalog().op(op)
    (dims, *_) = contract.examples
    lengths = {name: 2000 for name in ("q_len", "kv_len", "total_q", "total_k") if name in dims}
    least = {}
    for dtype in ("float32", "bfloat16"):
        for head_dim in (64, 128):
            problem = contract.problem_of({**dims, **lengths, "head_dim": head_dim, "dtype": dtype})
            configs = implementation.space(problem, H200).configs
            rows = [config["BLOCK"] for config in configs if config["num_warps"] == 8]
            least[dtype, head_dim] = min(rows, default=128)
    assert least == {("float32", 64): 128, ("float32", 128): 128, ("bfloat16", 64): 64, ("bfloat16", 128): 64}
