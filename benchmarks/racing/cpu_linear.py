"""The linear layer on a CPU: registry_cpp's products at their defaults against what torch offers.

    python -m benchmarks.racing.cpu_linear [--threads 1] [--op gemm_int4] [--write benchmarks/results/cpu]

Square weights of 2048 and 4096 and 1 to 256 tokens. Rivals: a bfloat16 linear layer with the whole weight, and torch's
own operators for the format. All are timed in turns in one run, and medians are printed: a slow moment of the machine
meets all of them. Clocks and threads are those of ``benchmarks.cpu_kernels``. Weights that do not fit in the second
cache are read from the third or from memory at each call.

Predicted before the first run on two cores with AMX, one thread, as the bfloat16 layer's time over ours: bounded by the
bytes of the weight for up to 16 tokens, so 2 for 8 bits and 4 for 4 bits at one token; 2.5 to 3 at 64 and 256 tokens
for int8 sums, whose tiles hold twice as much of K; 2 for levels in bfloat16, where expanding them takes as long as
multiplying 16 tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from registry.contract import Op
from registry.contracts import BOX
from registry.device import Device
from registry.discovery.answers import refusals
from registry.dispatch.plans.plan import Candidate, build
from registry.implementation import Implementation
from registry.packed import unpack
from registry.problem import Problem
from registry_cpp.gemm_int4 import CppGemmInt4, CppGemvInt4
from registry_cpp.int8_products import AmxInt8Product, DotInt8Product, Int8Weight
from registry_cpp.packed_gemm import CppGemm, CppGemv
from registry_cpp.weight_products import AmxWeightProduct, DotWeightProduct, PairedWeight

from ..cpu_kernels import Call, bound_call, interleaved_us
from .cpu_run import Clock, CpuRun

SIZES = (4096, 2048)
TOKENS = (1, 4, 16, 64, 256)
ROUNDS = 15
SAMPLE_US = 2000.0

FORMATS: dict[str, dict[str, Any]] = {
    "linear": {"bias": False, "dtype": "bfloat16"},
    "gemm_int4": {"group_size": 128, "bits": 4, "symmetric": False, "dtype": "bfloat16"},
    "gemm_int8": {"group_size": 0, "zeros": "none", "act_order": False, "bias": False, "dtype": "bfloat16"},
    "gemm_w4a8": {"group_size": 128, "zeros": "none", "bias": False, "dtype": "bfloat16"},
    "gemm_w8a8": {"group_size": 0, "zeros": "none", "bias": False, "dtype": "bfloat16"},
    "scaled_mm": {"scales": "row", "bias": False, "out_dtype": "bfloat16", "dtype": "int8"},
}
"""Dimensions beside m, n and k; a group size of 0 is the whole column."""


def implementations(op: str) -> list[tuple[str, Implementation]]:
    """The plugin's implementations of an op, each with a column's name."""
    if op in ("gemm_w4a8", "gemm_w8a8", "scaled_mm"):
        weight = Int8Weight(op, 4 if op == "gemm_w4a8" else 8)
        avx2 = DotInt8Product(weight, "avx2")
        return [("cpp.amx", AmxInt8Product(weight)), ("cpp.dot", DotInt8Product(weight)), ("cpp.dot on AVX2", avx2)]
    paired = PairedWeight(op, {"linear": 16, "gemm_int8": 8}.get(op, 4))
    found: list[tuple[str, Implementation]] = [
        ("cpp.amx", AmxWeightProduct(paired)),
        ("cpp.dot", DotWeightProduct(paired)),
    ]
    former: dict[str, list[Implementation]] = {
        "gemm_int4": [CppGemvInt4(), CppGemmInt4()],
        "gemm_int8": [CppGemv("gemm_int8", 8), CppGemm("gemm_int8", 8)],
    }
    return found + [(one.name, one) for one in former.get(op, ())]


def problem_of(op: Op, m: int, size: int) -> Problem:
    """The problem of ``m`` tokens and a square weight."""
    dims = {**FORMATS[op.name], "m": m, "n": size, "k": size}
    if dims.get("group_size") == 0:
        dims["group_size"] = size
    if op.name in ("gemm_w4a8", "gemm_w8a8"):
        dims |= {"activation": "int8", "act_order": False, "static": False}
    return op.problem_of(dims)


def torch_calls(problem: Problem, values: tuple[Any, ...]) -> Iterator[tuple[str, Call]]:
    """torch's ways: the layer that was not quantised, then operators of the format."""
    m, n, k = problem.m, problem.n, problem.k
    x, weight = torch.randn(m, k).bfloat16(), torch.randn(n, k).bfloat16()
    yield "torch bf16", lambda: torch.nn.functional.linear(x, weight)
    if problem.op == "gemm_int4":
        levels = torch.ops.aten._convert_weight_to_int4pack_for_cpu(unpack(values[1]).T.contiguous(), 1)
        parts = torch.stack([values[2], (8 - values[3].float()).mul(values[2]).bfloat16()], -1).contiguous()
        yield "torch int4pack", lambda: torch.ops.aten._weight_int4pack_mm_for_cpu(values[0], levels, 128, parts)
    bytes_of = torch.randint(-127, 128, (n, k)).to(torch.int8)
    if problem.op == "gemm_int8":
        column = torch.rand(n).bfloat16()
        yield "torch int8pack", lambda: torch.ops.aten._weight_int8pack_mm(values[0], bytes_of, column)
    if problem.op in ("gemm_w8a8", "gemm_w4a8", "scaled_mm"):
        yield "torch _int_mm", lambda: torch._int_mm(values[0], bytes_of.T)
        yield "oneDNN qlinear", qlinear(values[0], bytes_of)


def qlinear(a: torch.Tensor, weight: torch.Tensor) -> Call:
    """oneDNN's product as torch's quantised models run it: a prepacked weight, one scale a tensor and a column."""
    n = weight.shape[0]
    packed = torch.ops.onednn.qlinear_prepack(weight.T, list(a.shape))
    scales, zeros = torch.rand(n), torch.zeros(n, dtype=torch.int32)
    last: tuple[Any, ...] = (None, 1.0, 0, torch.bfloat16, "none", [], "")
    return lambda: torch.ops.onednn.qlinear_pointwise(a, 0.01, 0, packed, scales, zeros, *last)


def measure(op: Op, m: int, size: int, device: Device, clock: Clock) -> dict[str, Any] | None:
    """Medians in microseconds of all that run a problem, and the column of what dispatch prefers before tuning.

    None where none of ours runs on this CPU.
    """
    problem = problem_of(op, m, size)
    values = op.inputs(problem, op.kinds[0], torch.Generator().manual_seed(0))
    calls, preferences = dict(torch_calls(problem, values)), {}
    arguments = op.arguments(values)
    for name, one in implementations(op.name):
        if not refusals(one, problem, device):
            plan = build(op, Candidate(one, one.default(problem, device)), problem, arguments, device)
            calls[name] = bound_call(plan, values)
            if name != "cpp.dot on AVX2":
                preferences[name] = one.preference(problem, device)
    if not preferences:
        return None
    medians = interleaved_us(calls, ROUNDS, SAMPLE_US, clock)
    preferred = max(preferences, key=lambda name: preferences[name])
    return {"op": op.name, "m": m, "size": size, "preferred": preferred, "us": medians}


def line(result: dict[str, Any]) -> str:
    """A row: every median, and the preferred one's ratios to torch's, above 1 where ours is faster."""
    ours = result["us"][result["preferred"]]
    told = ", ".join(f"{name} {median:.0f}" for name, median in result["us"].items())
    ratios = ", ".join(
        f"{median / ours:.2f}" for name, median in result["us"].items() if name.startswith(("torch", "oneDNN"))
    )
    return f"| {result['op']} | {result['size']} | {result['m']} | {told} | {result['preferred']} | {ratios} |"


def table(results: list[dict[str, Any]]) -> str:
    """Markdown."""
    names = ("op", "n, k", "m", "medians, us", "ours", "torch's times over ours, in order")
    head = f"| {' | '.join(names)} |\n|{' --- |' * len(names)}"
    return "\n".join([head, *map(line, results)]) + "\n"


def main() -> None:
    """Measure, print, and keep the results when asked to."""
    run, ops = CpuRun(__doc__ or "", FORMATS), {op.name: op for op in BOX}
    results: list[dict[str, Any]] = []
    for name in filter(run.wants, FORMATS):
        for size in SIZES:
            for m in TOKENS:
                if (measured := measure(ops[name], m, size, run.device, run.clock)) is not None:
                    results.append(measured)
                    print(line(measured), flush=True)
    run.keep("cpu_linear", "The linear layer on a CPU", table(results), results)


if __name__ == "__main__":
    main()
