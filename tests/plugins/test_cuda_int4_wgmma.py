"""cuda.wgmma: its space and default, what it shares with cuda.mma, its kernels compiled, its order of tokens."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from registry.artifact import Signature
from registry.backends.cuda import nvrtc, read_source
from registry.contracts import GEMM_INT4
from registry.device import Device
from registry.dispatch.plans.prepared import PreparedTensors
from registry.problem import Arguments, Problem, Value
from registry.space import Config
from registry_cuda import gemm_int4_implementations
from registry_cuda.gemm_int4 import MmaInt4
from registry_cuda.gemm_int4_wgmma import WgmmaInt4, whole

pytest.importorskip("cuda.core")

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20)
A100 = Device("cuda", 0, "NVIDIA A100", "sm_80", 108, 80 << 30, 40 << 20)
NOTHING = Signature(Arguments("", {}), {})
MMA = MmaInt4()
WGMMA = WgmmaInt4(MMA)


def problem_of(m: int, n: int, k: int, group_size: int = 128, **more: Value) -> Problem:
    traits = {"aligned": more.pop("aligned", True)}
    dims: dict[str, Value] = {"m": m, "n": n, "k": k, "group_size": group_size, "bits": 4, "dtype": "bfloat16"}
    return Problem("gemm_int4", {**dims, "symmetric": False, **more}, traits)


def config_of(tokens: int, groups: int = 1, along_k: int = 1, cluster: int = 1, resident: int = 1) -> Config:
    sizes = {"tokens": tokens, "groups": groups, "along_k": along_k}
    return {**sizes, "cluster": cluster, "stages": 4, "resident": resident}


def test_every_reason_is_given() -> None:
    odd = problem_of(3, 64, 100, 100, aligned=False)
    told = list(WGMMA.unsupported(odd, A100))
    assert [reason.split()[0] for reason in told] == ["wgmma", "tensors", "k=100", "m=3"]
    assert [reason.split()[0] for reason in WGMMA.unsupported(problem_of(64, 64, 96, 32), H200)] == ["k=96"]
    assert not list(WGMMA.unsupported(problem_of(17, 33, 136, 136), H200))


@pytest.mark.parametrize("m", [9, 16, 33, 64, 96, 128, 192, 256, 1024, 8192])
@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (28672, 4096), (4096, 14336), (128, 128)])
@pytest.mark.few(20)
def test_spaces_hold_their_default_and_fit_shared_memory(m: int, n: int, k: int) -> None:
    problem = problem_of(m, n, k)
    space = WGMMA.space(problem, H200)
    assert 1 <= len(space) <= 140
    assert WGMMA.default(problem, H200) in space
    for config in space:
        _, product = WGMMA.launch(problem, config, H200)
        assert product.shared_bytes * config["resident"] <= 227 * 1024
        assert product.grid[0] % config["cluster"] == 0


def test_a_weight_is_held_once_for_both_implementations() -> None:
    decode, prefill = gemm_int4_implementations()
    values = GEMM_INT4.inputs(problem_of(1, 64, 256), "normal", torch.Generator().manual_seed(0))
    few = PreparedTensors(GEMM_INT4, decode, problem_of(1, 64, 256), {}).extend(values)
    many = PreparedTensors(GEMM_INT4, prefill, problem_of(64, 64, 256), config_of(64)).extend(values)
    assert [one is other for one, other in zip(few[-2:], many[-3:], strict=False)] == [True, True]
    others = PreparedTensors(GEMM_INT4, MMA, problem_of(1, 64, 256), {}).extend(values)
    assert others[-1] is not few[-1], "an implementation of another plugin object prepares for itself"


def test_zero_points_that_are_not_whole_are_told() -> None:
    zeros = torch.tensor([[0.0, 7.0, 16.0]], dtype=torch.bfloat16)
    assert whole(zeros).tolist() == [1]
    assert whole(zeros + 0.5).tolist() == [0]
    assert whole(zeros + 200).tolist() == [0]
    assert whole(zeros.to("meta")).shape == (1,)


def test_one_variant_serves_several_row_counts() -> None:
    found = [WGMMA.variants(problem_of(m, 4096, 4096), config_of(64), H200, NOTHING) for m in (33, 64, 1000)]
    assert len({tuple(variant.key for variant in each) for each in found}) == 1


COMPILED = [
    (128, 28672, 4096, 128, config_of(128, 2)),
    (64, 4096, 14336, 128, config_of(64, 1, 2, 4)),
    pytest.param(32, 4096, 4096, 32, config_of(32, 1, 1, 8, 2), marks=pytest.mark.thorough),
    pytest.param(16, 4096, 4096, 4096, config_of(16, 2, 1, 1, 2), marks=pytest.mark.thorough),
]
"""Those with the most rows, which hold the most sums in registers, are for every change."""


@pytest.mark.parametrize(("m", "n", "k", "group_size", "config"), COMPILED)
@pytest.mark.thorough
def test_what_is_compiled_hardly_spills(m: int, n: int, k: int, group_size: int, config: Config) -> None:
    problem = problem_of(m, n, k, group_size)
    assert config in WGMMA.space(problem, H200)
    for variant in WGMMA.variants(problem, config, H200, NOTHING):
        assert WGMMA.compile(variant, H200.target).resources["spill_bytes"] <= 8


# the order of tokens


def ordered(a: torch.Tensor, problem: Problem, config: Config, folder: Path) -> torch.Tensor:
    """What token_tiles.cu makes of ``a``, ``[m, k]``, its very text run thread by thread on the CPU."""
    order, _ = WGMMA.launch(problem, config, H200)
    text = "\n".join(
        [
            '#include "cuda_on_cpu.hpp"',
            *(f"#define {name} {nvrtc.macro(name, value)}" for name, value in order.constants.items()),
            read_source("registry_cuda.kernels", "token_tiles.cu"),
            'extern "C" void launch(Words *tiles, const Words *a, long long m) {',
            f"  for (blockIdx.y = 0; blockIdx.y < {order.grid[1]}; ++blockIdx.y)",
            f"    for (blockIdx.x = 0; blockIdx.x < {order.grid[0]}; ++blockIdx.x)",
            "      for (threadIdx.x = 0; threadIdx.x < THREADS; ++threadIdx.x) token_tiles(tiles, a, m);",
            "}",
        ]
    )
    (folder / "order.cpp").write_text(text)
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-w", f"-I{Path(__file__).parent / 'cuda_on_cpu'}"]
    subprocess.run(["g++", *flags, str(folder / "order.cpp"), "-o", str(folder / "order.so")], check=True)
    spec = WGMMA.scratch(problem, config, Device.of("cpu"))["tiles"]
    tiles = torch.full(spec.shape, -1, dtype=a.dtype)
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (tiles, a)]
    ctypes.CDLL(str(folder / "order.so")).launch(*pointers, ctypes.c_longlong(len(a)))
    return tiles


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize(("m", "k", "tokens"), [(40, 136, 32), (16, 256, 16), (70, 128, 48)])
@pytest.mark.few(1)
def test_tokens_stand_where_the_products_look(m: int, k: int, tokens: int, tmp_path: Path) -> None:
    problem = problem_of(m, 64, k, k)
    a = torch.arange(m * k, dtype=torch.int16).view(m, k).view(torch.bfloat16)
    found = ordered(a, problem, config_of(tokens), tmp_path).view(torch.int16)
    padded = torch.nn.functional.pad(a.view(torch.int16), (0, -k % 128))
    # tile, chunk, product step, half, row, t, e: k = 8 t + 4 step + 2 half + e of its chunk
    tiles = found.view(-1, padded.shape[1] // 32, 2, 2, tokens, 4, 2)
    chunks = padded.view(m, -1, 4, 2, 2, 2)
    for row in range(m):
        stored = tiles[row // tokens, :, :, :, row % tokens]
        assert torch.equal(stored, chunks[row].permute(0, 2, 3, 1, 4)), f"row {row}"
