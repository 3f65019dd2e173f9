"""Triton kernels on the GPU: numerics at size, and every way of launching."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

import triton

from registry.arguments.schema import with_tensors
from registry.backends.triton import launch as triton_launch
from registry.correctness.bits import same_bits
from registry.correctness.numerics import compare, own_error, reference64
from registry.correctness.output_faults import poison
from registry.device import Device
from registry.discovery.answers import refusals
from registry.dispatch.plans.plan import Candidate, Plan, build
from registry.errors import NotReadyError, OutOfResourcesError
from registry.implementation import Implementation, Launch
from registry.problem import Problem
from registry.space import Config
from registry_triton.softmax import RowSoftmax

from ..triton_forms import EACH, FORMS, OPS

INT4 = {"bits": 4, "n": 1000, "k": 1024, "symmetric": False}
LARGE: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "vector_add": [{"n": 3_000_001}],
    "square": [{"n": 3_000_001}],
    "gelu": [{"n": 3_000_001, "approximate": "tanh"}, {"n": 1_000_000, "approximate": "none"}],
    "softmax": [
        {"rows": 300, "cols": 4096}, {"rows": 5, "cols": 50257},
        {"rows": 3, "cols": 151936}, {"rows": 999, "cols": 100},
    ],
    "rms_norm": [{"rows": 300, "cols": 4096}, {"rows": 3, "cols": 128256}, {"rows": 999, "cols": 100}],
    **{
        f"layer_norm{gradient}": [
            {"rows": rows, "cols": cols, "weight": weight, "bias": bias}
            for rows, cols, weight, bias in (
                (3000, 4096, True, True), (3, 128256, True, False), (9999, 100, False, False), (1, 8191, True, True),
            )
        ]
        for gradient in ("", "_backward")
    },
    **{
        f"cross_entropy{gradient}": [
            {"rows": rows, "cols": cols, "reduction": reduction, "weight": weight}
            for rows, cols, reduction, weight in (
                (2048, 32000, "mean", False), (3, 128256, "none", False), (9999, 100, "sum", True),
                (64, 50257, "mean", True),
            )
        ]
        for gradient in ("", "_backward")
    },
    **{
        f"fused_linear_cross_entropy{gradient}": [
            {"rows": rows, "cols": cols, "k": k, "reduction": reduction, "bias": bias}
            for rows, cols, k, reduction, bias in (
                (5000, 32000, 512, "mean", False), (3, 128256, 256, "none", True), (1500, 50257, 100, "sum", False),
            )
        ]
        for gradient in ("", "_backward")
    },
    "fused_linear_cross_entropy_gradients": [
        {"rows": rows, "cols": cols, "k": k, "reduction": reduction, "bias": bias}
        for rows, cols, k, reduction, bias in (
            (5000, 32000, 512, "mean", False), (3, 128256, 256, "mean", True), (1500, 50257, 100, "sum", False),
        )
    ],
    **{
        f"silu_and_mul{gradient}": [
            {"rows": 3000, "cols": 14336}, {"rows": 1, "cols": 11008}, {"rows": 999, "cols": 101},
        ]
        for gradient in ("", "_backward")
    },
    **{
        f"gelu_and_mul{gradient}": [
            {"rows": 3000, "cols": 14336, "approximate": "tanh"}, {"rows": 999, "cols": 101, "approximate": "none"},
        ]
        for gradient in ("", "_backward")
    },
    **{
        f"attention{gradient}": [
            {"batch": batch, "heads": 8, "kv_heads": kv_heads, "q_len": rows, "kv_len": keys, "head_dim": width,
             "causal": causal, "mask": mask, "softcap": cap, "span": span}
            for batch, kv_heads, rows, keys, width, causal, mask, cap, span in (
                (2, 2, 1000, 1000, 128, True, "none", False, False), (1, 8, 77, 1500, 64, True, "none", False, 200),
                (1, 1, 600, 300, 80, False, "additive", False, False), (2, 4, 333, 333, 256, True, "bool", True, False),
                (1, 8, 1, 2000, 128, False, "none", False, False),
            )
        ]
        for gradient in ("", "_backward")
    },
    **{
        f"attention_varlen{gradient}": [
            {"sequences": sequences, "heads": 8, "kv_heads": kv_heads, "total_q": rows, "total_k": keys,
             "head_dim": width, "causal": causal, "softcap": cap, "span": span, "lengths": lengths}
            for sequences, kv_heads, rows, keys, width, causal, cap, span, lengths in (
                (3, 2, 2000, 2000, 128, True, False, False, "skewed"),
                (40, 8, 500, 3000, 64, True, False, 200, "uniform"),
                (2, 1, 600, 300, 80, False, False, False, "skewed"),
                (5, 4, 666, 666, 256, True, True, False, "uniform"), (300, 8, 700, 900, 128, False, False, 9, "skewed"),
            )
        ]
        for gradient in ("", "_backward")
    },
    "fused_add_rms_norm": [
        {"rows": 300, "cols": 4096, "weight": True}, {"rows": 3, "cols": 128256, "weight": True},
        {"rows": 999, "cols": 100, "weight": False},
    ],
    "kv_cache_append": [
        {"tokens": tokens, "kv_heads": heads, "head_dim": size, "block_size": block, "kv_dtype": kind}
        for tokens, heads, size, block, kind in (
            (999, 8, 128, 16, "auto"), (999, 8, 128, 16, "float8_e4m3fn"), (1, 1, 80, 1, "float8_e4m3fn"),
            (70, 3, 20, 128, "auto"), (999, 8, 128, 16, "int8"), (1, 1, 80, 1, "int8"), (70, 3, 20, 128, "int8"),
        )
    ],
    "rotary_kv_append": [
        {"batch": batch, "heads": heads, "kv_heads": kv_heads, "q_len": q_len, "kv_len": kv_len, "head_dim": size,
         "rotary_dim": part, "style": style, "positions": style == "gptj" or q_len > 200}
        for batch, heads, kv_heads, q_len, kv_len, size, part, style in (
            (1, 32, 8, 1, 4096, 128, 128, "neox"), (16, 32, 8, 1, 1024, 128, 128, "neox"),
            (2, 32, 8, 300, 700, 64, 64, "neox"), (3, 7, 1, 5, 9, 80, 20, "neox"), (5, 32, 2, 1, 64, 128, 64, "gptj"),
        )
    ],
    "attention_decode": [
        {"batch": batch, "heads": heads, "kv_heads": kv_heads, "q_len": q_len, "kv_len": kv_len, "head_dim": size,
         "page": page, "span": span, "kv_dtype": kind, "softcap": cap, "lengths": lengths}
        for batch, heads, kv_heads, q_len, kv_len, size, page, span, kind, cap, lengths in (
            (1, 32, 8, 1, 8192, 128, False, False, "auto", False, "full"),
            (16, 32, 8, 1, 2048, 128, 16, False, "auto", False, "skewed"),
            (5, 32, 8, 4, 1008, 128, 16, False, "float8_e4m3fn", True, "uniform"),
            (3, 8, 1, 16, 777, 80, False, 100, "float8_e4m3fn", False, "uniform"),
            (2, 16, 8, 2, 4096, 256, 64, 1023, "auto", True, "full"),
            (200, 12, 12, 1, 300, 64, 1, False, "auto", False, "uniform"),
            (1, 4, 4, 1, 100_000, 20, False, False, "auto", False, "full"),
            (16, 32, 8, 1, 2048, 128, 16, False, "int8", False, "skewed"),
            (5, 32, 8, 4, 1008, 128, False, 100, "int8", True, "uniform"),
            (3, 8, 1, 16, 777, 80, False, False, "int8", False, "uniform"),
            (1, 16, 8, 1, 100_000, 256, 16, False, "int8", False, "full"),
        )
    ],
    "top_k_top_p_sampling": [
        {"rows": rows, "cols": cols, "top_k": top_k, "top_p": top_p}
        for rows, cols, top_k, top_p in (
            (64, 128256, True, True), (1, 151936, True, False), (300, 50257, False, True), (999, 100, True, True),
            (16, 32000, False, False),
        )
    ],
    "mla_decode": [
        {"batch": batch, "heads": heads, "kv_len": kv_len, "kv_lora_rank": rank, "rope_dim": rope, "page": page,
         "lengths": lengths}
        for batch, heads, kv_len, rank, rope, page, lengths in (
            (1, 128, 8192, 512, 64, 64, "full"), (16, 128, 2048, 512, 64, False, "uniform"),
            (5, 16, 1008, 512, 64, 16, "skewed"), (3, 40, 777, 384, 32, False, "uniform"),
            (200, 7, 300, 100, 20, 1, "full"),
        )
    ],
    **{
        f"embedding{gradient}": [
            {"rows": rows, "cols": cols, "vocabulary": count, "frequency": frequency}
            for rows, cols, count, frequency in (
                (8192, 4096, 32000, "skewed"), (1, 8192, 128256, "uniform"), (999, 101, 1003, "uniform"),
                (20_000, 64, 7, "skewed"),
            )
        ]
        for gradient in ("", "_backward")
    },
    **{
        f"topk_softmax{gradient}": [
            {"tokens": tokens, "experts": experts, "top_k": top_k, "renormalize": renormalize, "scoring": scoring}
            for tokens, experts, top_k, renormalize, scoring in (
                (8192, 128, 8, True, "softmax"), (1, 8, 2, False, "softmax"), (999, 256, 8, True, "sigmoid"),
                (33, 60, 60, False, "sigmoid"), (5, 1000, 50, True, "softmax"),
            )
        ]
        for gradient in ("", "_backward")
    },
    **{
        op: [
            {"tokens": tokens, "heads": heads, "kv_heads": 8, "head_dim": size, "rotary_dim": part, "style": style}
            for tokens, heads, size, part, style in (
                (999, 32, 128, 128, "neox"), (1, 64, 128, 64, "gptj"), (33, 9, 80, 20, "neox"), (70, 8, 96, 10, "gptj"),
            )
        ]
        for op in ("rotary_embedding", "apply_rotary", "apply_rotary_backward")
    },
    "gemm_int4": [
        {**INT4, "m": 1, "group_size": 128}, {**INT4, "m": 3, "group_size": 32}, {**INT4, "m": 17, "group_size": 128},
        {**INT4, "m": 130, "group_size": 1024}, {**INT4, "m": 1, "group_size": 1024, "symmetric": True},
    ],
    **{
        f"gemm_{kind}": [
            {"m": m, "n": 1000, "k": 1024, "group_size": size, "zeros": zeros, "act_order": order, "bias": order}
            for m, size in ((1, 128), (3, 1024), (17, 64), (700, 128))
        ]
        for kind, zeros, order in (
            ("int8", "integer", True), ("int2", "float", False), ("int1", "none", False), ("nf4", "none", False),
            ("w4a16", "float", True),
        )
    },
    **{
        f"gemm_{kind}a8": [
            {"m": m, "n": 1000, "k": 1024, "group_size": size, "zeros": zeros, "act_order": False, "activation": to,
             "static": m == 1, "bias": m > 1}
            for m, size in ((1, 128), (17, 1024), (700, 64))
            for to in ("int8", "float8_e4m3fn")
        ]
        for kind, zeros in (("w4", "integer"), ("w8", "none"))
    },
    **{
        op: [
            {"m": m, "n": 1000, "k": k, "bias": bias}
            for m, k, bias in ((1, 1024, True), (3, 1000, False), (17, 4096, True), (700, 1024, True))
        ]
        for op in ("linear", "gemm_sparse24")
    },
    "quantize_per_token": [
        {"m": 999, "k": 7168, "group_size": size, "out_dtype": to, "scale": static}
        for to in ("int8", "float8_e4m3fn")
        for size, static in ((7168, False), (128, False), (7168, True))
    ],
    **{
        f"grouped_gemm{gradient}": [
            {"m": m, "n": 1000, "k": k, "experts": experts, "routing": routing}
            for m, k, experts, routing in (
                (1, 1024, 8, "uniform"), (65, 1000, 130, "uniform"), (900, 512, 33, "skewed"),
                (700, 512, 8, "one_expert"),
            )
        ]
        for gradient in ("", "_backward")
    },
    "grouped_gemm_int4": [
        {"m": m, "n": 1000, "k": 1024, "group_size": size, "zeros": zeros, "experts": experts, "routing": routing}
        for m, size, zeros, experts, routing in (
            (1, 128, "none", 8, "uniform"), (65, 32, "float", 130, "uniform"), (900, 128, "float", 33, "skewed"),
            (700, 1024, "none", 8, "one_expert"),
        )
    ],
    "grouped_scaled_mm": [
        {"m": m, "n": 1000, "k": k, "experts": experts, "routing": routing, "out_dtype": out_dtype, "dtype": dtype}
        for dtype in ("float8_e4m3fn", "int8")
        for m, k, experts, routing, out_dtype in (
            (1, 1024, 8, "uniform", "float32"), (65, 1000, 130, "uniform", "bfloat16"),
            (900, 7168, 33, "skewed", "float16"), (700, 512, 8, "one_expert", "bfloat16"),
        )
    ],
    "fused_moe": [
        {"tokens": tokens, "hidden": hidden, "intermediate": width, "experts": experts, "top_k": top_k,
         "activation": activation, "routing": routing}
        for tokens, hidden, width, experts, top_k, activation, routing in (
            (1, 1024, 768, 8, 2, "silu", "uniform"), (5, 1000, 264, 33, 4, "gelu", "skewed"),
            (700, 512, 768, 130, 8, "silu", "uniform"), (333, 1024, 512, 8, 2, "gelu_tanh", "one_expert"),
            (1024, 512, 1024, 8, 2, "silu", "skewed"),
        )
    ],
    "scaled_mm": [
        {"m": m, "n": 1000, "k": k, "scales": scales, "bias": True, "out_dtype": out_dtype, "dtype": dtype}
        for dtype in ("float8_e4m3fn", "int8")
        for scales in ("tensor", "row", "block")
        for m, k, out_dtype in ((1, 1024, "float32"), (17, 1000, "float16"), (700, 7168, "bfloat16"))
    ],
    "square_backward": [{"n": 3_000_001}],
    "gelu_backward": [{"n": 3_000_001, "approximate": "tanh"}, {"n": 1_000_000, "approximate": "none"}],
    "softmax_backward": [{"rows": 300, "cols": 4096}, {"rows": 3, "cols": 151936}, {"rows": 999, "cols": 100}],
    "rms_norm_backward": [
        {"rows": 3000, "cols": 4096}, {"rows": 300, "cols": 14336},
        {"rows": 9999, "cols": 100}, {"rows": 1, "cols": 8191},
    ],
}  # fmt: skip


def make(op: str, implementation: Implementation, config: Config, values: tuple[Any, ...]) -> Plan:
    arguments = OPS[op].arguments(values)
    return build(OPS[op], Candidate(implementation, config), OPS[op].pose(arguments), arguments, Device.best())


def softmax_plan(x: torch.Tensor) -> Plan:
    implementation, device = RowSoftmax(), Device.best()
    problem = Problem("softmax", {"rows": x.shape[0], "cols": x.shape[1], "dtype": "float32"})
    return make("softmax", implementation, implementation.default(problem, device), (x, -1))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("op", "place"), EACH)
def test_numerics(op: str, place: int, dtype: str) -> None:
    contract, implementation, device = OPS[op], FORMS[op][place], Device.best()
    if op == "gemm_int4" and dtype == "float32":
        pytest.skip("activations are of half precision")
    if op.endswith("scaled_mm") and dtype != "bfloat16":
        pytest.skip("its problems say their dtypes")
    for number, dims in enumerate(LARGE[op]):
        if dtype == "float32" and dims.get("zeros") == "integer":
            continue  # float32 scales have float zero points
        problem = contract.problem_of({"dtype": dtype, **dims})
        if refusals(implementation, problem, device):
            continue
        generator = torch.Generator("cuda").manual_seed(number)
        values = contract.inputs(problem, contract.kinds[number % len(contract.kinds)], generator)
        reference = reference64(contract, values)
        errors = own_error(contract, problem, values, reference)
        configs = implementation.space(problem, device).configs
        for config in (implementation.default(problem, device), configs[0], configs[len(configs) // 2], configs[-1]):
            plan = make(op, implementation, config, values)
            outputs = plan.allocate()
            poison(outputs)
            # what is mutated is judged, too
            given, twice = with_tensors(values, torch.clone), with_tensors(values, torch.clone)
            first = contract.results(plan.into(outputs, given), given)
            found = compare(contract, problem, first, reference, errors, values)
            assert found.ok, (problem, config, found)
            again = contract.results(plan(*twice), twice)
            assert all(same_bits(one, other) for one, other in zip(again, first, strict=True))


def test_the_direct_launcher_is_trusted_and_gives_what_the_jit_gives() -> None:
    assert triton_launch._probe()
    x = torch.randn(33, 1000, device="cuda")
    plan = softmax_plan(x)
    implementation, config = plan.candidate.implementation, plan.candidate.config
    assert isinstance(implementation, RowSoftmax)
    launch = implementation.launch(plan.problem, config, Device.best())
    y = torch.empty_like(x)
    rows, units = launch.args[2:]
    launch.kernel[launch.grid](y, x, rows, units, **launch.constants, num_warps=config["num_warps"])
    assert same_bits(plan(x, -1), y)


def test_an_unaligned_view_goes_through_the_twin() -> None:
    storage = torch.randn(16 * 1024 + 1, device="cuda")
    aligned, view = storage[:-1].view(16, 1024), storage[1:].view(16, 1024)
    plan = softmax_plan(aligned)
    torch.testing.assert_close(plan(aligned, -1), aligned.softmax(-1))
    torch.testing.assert_close(plan(view, -1), view.softmax(-1))
    torch.testing.assert_close(plan(aligned, -1), aligned.softmax(-1))


def test_an_unaligned_view_during_capture_is_an_error_until_its_twin_is_built() -> None:
    storage = torch.randn(16 * 1024 + 1, device="cuda")
    aligned, view = storage[:-1].view(16, 1024), storage[1:].view(16, 1024)
    plan = softmax_plan(aligned)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(NotReadyError, match="before capturing"):
            plan(view, -1)
        plan(aligned, -1)
    plan(view, -1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = plan(view, -1)
    graph.replay()
    torch.testing.assert_close(y, view.softmax(-1))


class _Grid(RowSoftmax):
    """A launch that asks for more programs than can be counted."""

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        whole = super().launch(problem, config, device)
        return Launch(whole.kernel, (65536, 65536), whole.args, whole.constants, whole.options)


def test_a_grid_too_large_is_refused_before_anything_is_launched() -> None:
    x = torch.randn(4, 64, device="cuda")
    with pytest.raises(OutOfResourcesError, match="65536 x 65536"):
        make("softmax", _Grid(), {"rows_per_program": 1, "num_warps": 1}, (x, -1))


def test_more_rows_than_a_second_grid_extent_holds() -> None:
    x = torch.randn(70_000, 16, device="cuda")
    torch.testing.assert_close(softmax_plan(x)(x, -1), x.softmax(-1))


def test_threads_share_a_plan() -> None:
    x = torch.randn(64, 4096, device="cuda")
    plan, wrong = softmax_plan(x), []

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                y = plan(x, -1)
            torch.cuda.current_stream().synchronize()
            if not torch.allclose(y, x.softmax(-1)):
                wrong.append(y)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_launch_hook_sees_every_launch() -> None:
    x = torch.randn(8, 128, device="cuda")
    plan, seen = softmax_plan(x), []

    def hook(metadata: Any) -> None:
        seen.append(metadata.get()["name"])

    triton.knobs.runtime.launch_enter_hook.add(hook)
    try:
        y = plan(x, -1)
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(hook)
    plan(x, -1)
    assert seen == ["row_softmax"]
    torch.testing.assert_close(y, x.softmax(-1))


def test_a_graph_outlives_the_plan_it_captured() -> None:
    x = torch.randn(8, 128, device="cuda")
    plan = softmax_plan(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = plan(x, -1)
    del plan
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(y, x.softmax(-1))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_current_device_may_be_another() -> None:
    x = torch.randn(8, 128, device="cuda:1")
    arguments = OPS["softmax"].arguments((x, -1))
    problem, device = OPS["softmax"].pose(arguments), Device.of("cuda:1")
    candidate = Candidate(RowSoftmax(), RowSoftmax().default(problem, device))
    y = build(OPS["softmax"], candidate, problem, arguments, device)(x, -1)
    torch.testing.assert_close(y, x.softmax(-1))
