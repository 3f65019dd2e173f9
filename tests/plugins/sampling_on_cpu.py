"""The text of cuda.cluster's kernel on a CPU, and the judgement of what it draws."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from registry.backends.cuda import nvrtc, read_source
from registry.contracts import TOP_K_TOP_P_SAMPLING as OP
from registry.contracts.sampling.kept_tokens import samples_are_right
from registry.device import Device
from registry.implementation import Launch
from registry.problem import Problem
from registry.space import Config
from registry_cuda.number import C_TYPES
from registry_cuda.sampling.top_k_top_p import FILES, SHARED_FILES, ClusterTopKTopPSampling

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20)
CLUSTER = ClusterTopKTopPSampling()
Draw = Callable[..., torch.Tensor]


def problem_of(rows: int, cols: int, dtype: str = "float32", filters: tuple[bool, bool] = (True, True)) -> Problem:
    return OP.problem_of({"rows": rows, "cols": cols, "top_k": filters[0], "top_p": filters[1], "dtype": dtype})


def config_of(cluster: int, threads: int, bins: int = 256) -> Config:
    return {"cluster": cluster, "threads": threads, "bins": bins}


def built(problem: Problem, config: Config, folder: Path, change: Callable[[str], str] | None = None) -> Draw:
    """A function of the op's values that runs the kernel: the text of all files but siblings.cuh, changed or not."""
    launch = CLUSTER.launch(problem, config, H200)
    assert isinstance(launch, Launch)
    element = C_TYPES[str(problem.dtype)]
    kernel = read_source("registry_cuda.sampling.kernels", *FILES)
    assert change is None or change(kernel) != kernel
    text = "\n".join(
        [
            '#include "siblings_on_cpu.hpp"',
            *(f"#define {name} {nvrtc.macro(name, value)}" for name, value in launch.constants.items()),
            read_source("registry_cuda.kernels", *SHARED_FILES),
            change(kernel) if change else kernel,
            f'extern "C" const char *launch(unsigned rows, bool backwards, int *samples, const {element} *logits,',
            "    const float *uniform, const int *top_k, const float *top_p, long long k_step, long long p_step) {",
            f"  return cpu::run_grid(rows * CLUSTER, CLUSTER, THREADS, {launch.shared_bytes}, backwards, top_k_top_p,",
            "                       samples, logits, uniform, top_k, top_p, k_step, p_step);",
            "}",
        ]
    )
    values = (*problem.dims.values(), *config.values(), launch.constants["VEC"], change is None)
    name = "-".join(map(str, values))
    (folder / f"{name}.cpp").write_text(text)
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-w", f"-I{Path(__file__).parent / 'cuda_on_cpu'}"]
    command = ["g++", *flags, str(folder / f"{name}.cpp"), "-o", str(folder / f"{name}.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    call = ctypes.CDLL(str(folder / f"{name}.so")).launch
    call.restype = ctypes.c_char_p

    def draw(*values: Any, backwards: bool = False) -> torch.Tensor:
        logits, _, top_k, top_p = values
        samples = torch.full((len(logits),), -1, dtype=torch.int32)
        steps = (0 if each is None else each.stride(0) for each in (top_k, top_p))
        pointers = (ctypes.c_void_p(None if each is None else each.data_ptr()) for each in (samples, *values))
        fault = call(len(logits), backwards, *pointers, *map(ctypes.c_longlong, steps))
        assert fault is None, fault.decode()
        return samples

    return draw


def check(found: torch.Tensor, values: tuple[Any, ...]) -> None:
    arguments = OP.arguments(values)
    named = dict(zip(OP.parsed.names, values, strict=True))
    faults = list(samples_are_right(OP.pose(arguments), named, {"samples": found}, {}))
    assert not faults, faults


def values_of(problem: Problem, kind: str, seed: int = 1) -> tuple[Any, ...]:
    return OP.inputs(problem, kind, torch.Generator().manual_seed(seed))


def check_both_orders(draw: Draw, values: tuple[Any, ...]) -> None:
    """Threads that run in another order draw the same."""
    found = draw(*values)
    check(found, values)
    assert torch.equal(draw(*values, backwards=True), found)
