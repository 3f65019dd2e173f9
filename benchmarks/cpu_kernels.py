"""torch's own CPU kernels against the best configuration of registry_cpp, problem by problem.

    python -m benchmarks.cpu_kernels [--threads 1] [--write benchmarks/results/cpu]

Every configuration is timed briefly; then torch, the best one and the default are timed in turns, 30 rounds, and the
medians of those rounds are what is printed: a slow moment of the machine meets all three. Buffers stay warm.
With ``--threads 1`` both sides get one thread and the clock is the process's CPU time, which other processes of the
machine disturb less; with more it is the wall clock, and the machine must be idle: a team waits for its last thread.

Predicted before the first run on a 2-core machine with AVX-512, as torch's time over ours: vector_add and square 1.0
where the caches hold everything and 1.2 from memory (no read of the output's lines); gelu 1.5; softmax 1.3, and 1.8 for
one long row, which torch gives to one thread; rms_norm 3, because torch composes it from several passes; gemm_int4
against unpacking and multiplying 50 for one row and 10 for sixteen; against torch's own packed kernel 1.0.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from registry.contract import Op
from registry.contracts import BOX
from registry.device import Device
from registry.discovery.answers import refusals
from registry.dispatch.plans.plan import Candidate, Plan, build
from registry.packed import PackedWeight, unpack
from registry.problem import Problem
from registry_cpp.elementwise import CppGelu, CppSquare, CppVectorAdd
from registry_cpp.gemm_int4 import CppGemmInt4, CppGemvInt4
from registry_cpp.rows import CppRmsNorm, SoftmaxColumns, SoftmaxRows

from .racing.cpu_run import Clock, CpuRun

IMPLEMENTATIONS = [
    CppVectorAdd(),
    CppSquare(),
    CppGelu(),
    SoftmaxRows(),
    SoftmaxColumns(),
    CppRmsNorm(),
    CppGemvInt4(),
    CppGemmInt4(),
]
Call = Callable[[], object]
SECONDS = 6.0

PROBLEMS: list[tuple[str, dict[str, Any]]] = [
    *(("vector_add", {"n": n, "dtype": dtype}) for n in (4096, 2**24) for dtype in ("float32", "bfloat16")),
    *(("square", {"n": n, "dtype": dtype}) for n in (2**20, 2**24) for dtype in ("float32", "bfloat16")),
    *(
        ("gelu", {"n": 2**20, "dtype": dtype, "approximate": approximate})
        for approximate in ("tanh", "none")
        for dtype in ("float32", "float16", "bfloat16")
    ),
    *(
        ("softmax", {"rows": rows, "cols": cols, "dtype": dtype})
        for rows, cols in ((16, 1024), (1024, 4096), (1, 128256))
        for dtype in ("float32", "bfloat16")
    ),
    *(
        ("rms_norm", {"rows": rows, "cols": 4096, "dtype": dtype})
        for rows in (1, 512)
        for dtype in ("float32", "bfloat16")
    ),
    *(
        (
            "gemm_int4",
            {"m": m, "n": 4096, "k": 4096, "group_size": 128, "bits": 4, "dtype": dtype, "symmetric": False},
        )
        for m in (1, 4, 16, 64)
        for dtype in ("float16", "bfloat16")
    ),
]


def torch_calls(problem: Problem, values: tuple[Any, ...]) -> Iterator[tuple[str, Call]]:
    """torch's ways to compute this, the plainest first."""
    if problem.op == "vector_add":
        yield "torch", lambda: values[0] + values[1]
    elif problem.op == "square":
        yield "torch", lambda: values[0] * values[0]
    elif problem.op == "gelu":
        yield "torch", lambda: torch.nn.functional.gelu(values[0], approximate=problem.approximate)
    elif problem.op == "softmax":
        yield "torch", lambda: torch.softmax(values[0], -1)
    elif problem.op == "rms_norm":
        yield "torch", lambda: torch.nn.functional.rms_norm(values[0], (problem.cols,), values[1], values[2])
    else:
        yield from _gemm_calls(problem, values)


def _gemm_calls(problem: Problem, values: tuple[Any, ...]) -> Iterator[tuple[str, Call]]:
    a, qweight, scales, zeros = values[:4]
    weight = PackedWeight(qweight, scales, zeros, problem.bits, problem.group_size, (problem.n, problem.k))
    yield "torch: unpack, multiply", lambda: a @ weight.dequantize().T
    unpacked = weight.dequantize().T.contiguous()
    yield "torch: multiply by a weight unpacked before (4 times the memory)", lambda: a @ unpacked
    if problem.dtype == "bfloat16":
        levels = unpack(qweight).T.contiguous()
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1)
        parts = torch.stack([scales, (8 - zeros.float()).mul(scales).to(scales.dtype)], -1).contiguous()
        yield (
            "torch: _weight_int4pack_mm_for_cpu",
            lambda: torch.ops.aten._weight_int4pack_mm_for_cpu(a, packed, problem.group_size, parts),
        )


def plans(op: Op, problem: Problem, values: tuple[Any, ...], device: Device) -> list[tuple[Plan, bool]]:
    """Every valid configuration, and whether it is its implementation's default."""
    arguments = op.arguments(values)
    return [
        (build(op, Candidate(one, config), problem, arguments, device), config == one.default(problem, device))
        for one in IMPLEMENTATIONS
        if one.op == op.name and not refusals(one, problem, device)
        for config in one.space(problem, device)
        if config["threads"] <= torch.get_num_threads() or config == one.default(problem, device)
    ]


def sample_us(call: Call, repeats: int, clock: Clock) -> float:
    """Mean time of ``repeats`` calls in a row."""
    start = clock()
    for _ in range(repeats):
        call()
    return (clock() - start) / repeats / 1000


def interleaved_us(calls: dict[str, Call], rounds: int, sample: float, clock: Clock) -> dict[str, float]:
    """Median of ``rounds`` samples of about ``sample`` us each, taken in turns; at least 3 rounds in 6 seconds."""
    repeats = {}
    for name, call in calls.items():
        call()
        repeats[name] = max(1, int(sample / max(sample_us(call, 3, clock), 0.1)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    start = time.monotonic()
    for done in range(rounds):
        if done >= 3 and time.monotonic() - start > SECONDS:
            break
        for name, call in calls.items():
            samples[name].append(sample_us(call, repeats[name], clock))
    return {name: statistics.median(taken) for name, taken in samples.items()}


def bound_call(plan: Plan, values: tuple[Any, ...]) -> Call:
    """The plan on these arguments."""
    return lambda: plan(*values)


def measure(op: Op, problem: Problem, device: Device, clock: Clock) -> dict[str, Any]:
    """One problem: the search, then the turns."""
    values = op.inputs(problem, op.kinds[0], torch.Generator().manual_seed(0))
    found = plans(op, problem, values, device)
    by_name = {str(plan.candidate): plan for plan, _ in found}
    searched = interleaved_us({name: bound_call(plan, values) for name, plan in by_name.items()}, 7, 500, clock)
    best = min(searched, key=lambda name: searched[name])
    preferred = max(
        (plan for plan, is_default in found if is_default),
        key=lambda plan: plan.candidate.implementation.preference(problem, device),
    )
    natives = dict(torch_calls(problem, values))
    turns = {**natives, "best": bound_call(by_name[best], values), "default": bound_call(preferred, values)}
    medians = interleaved_us(turns, 30, 1000, clock)
    return {
        "problem": str(problem),
        "best": best,
        "best_us": medians["best"],
        "default": str(preferred.candidate),
        "default_us": medians["default"],
        "torch_us": {name: medians[name] for name in natives},
        "configs": len(found),
    }


def table(results: list[dict[str, Any]]) -> str:
    """Markdown; the ratio is torch's time over ours, above 1 is faster than torch."""
    lines = ["| problem | torch us | best us | ratio | default us | best |", "| --- | --- | --- | --- | --- | --- |"]
    for one in results:
        for name, median in one["torch_us"].items():
            note = "" if name == "torch" else f" vs {name.removeprefix('torch: ')}"
            lines.append(
                f"| {one['problem']}{note} | {median:.1f} | {one['best_us']:.1f} | {median / one['best_us']:.2f} "
                f"| {one['default_us']:.1f} | {one['best']} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print, and keep the results when asked to."""
    run, ops = CpuRun(__doc__ or "", {name for name, _ in PROBLEMS}), {op.name: op for op in BOX}
    results = []
    for name, dims in PROBLEMS:
        if run.wants(name):
            results.append(measure(ops[name], ops[name].problem_of(dims), run.device, run.clock))
            print("\n".join(table(results[-1:]).splitlines()[2:]), flush=True)
    print(f"{json.dumps(run.environment)}\n\n{table(results)}")
    run.keep("cpu_kernels", "C++ kernels on a CPU against torch", table(results), results)


if __name__ == "__main__":
    main()
