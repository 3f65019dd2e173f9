"""cuda.mma: its order of the weight, its space, its kernel compiled for GPUs, and the kernel's very text on a CPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import registry
from registry.artifact import Signature
from registry.backends.cuda import nvrtc, read_source
from registry.contracts import GEMM_INT4
from registry.correctness import numerics
from registry.device import Device
from registry.dispatch.plans.prepared import PreparedTensors
from registry.implementation import Launch
from registry.packed import pack, unpack
from registry.problem import Arguments, Problem, Value, torch_dtype
from registry.space import Config
from registry_cuda import gemm_int4_implementations, int4_order
from registry_cuda.gemm_int4 import MmaInt4

pytest.importorskip("cuda.core")

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20)
A100 = Device("cuda", 0, "NVIDIA A100", "sm_80", 108, 80 << 30, 40 << 20)
NOTHING = Signature(Arguments("", {}), {})
MMA = MmaInt4()


def problem_of(m: int, n: int, k: int, group_size: int = 128, **more: Value) -> Problem:
    aligned = more.pop("aligned", True)
    dims: dict[str, Value] = {"m": m, "n": n, "k": k, "group_size": group_size, "bits": 4, "dtype": "bfloat16"}
    return Problem("gemm_int4", {**dims, "symmetric": False, **more}, {"aligned": aligned})


def config_of(columns: int, tokens: int, warps: tuple[int, int], cluster: int = 1, ahead: int = 4) -> Config:
    parts = {"warps_n": warps[0], "warps_k": warps[1], "cluster": cluster, "ahead": ahead}
    return {"columns": columns, "tokens": tokens, **parts}


# the order of the prepared tensors


@pytest.mark.parametrize(("n", "k", "group_size"), [(128, 128, 32), (33, 192, 64), (160, 136, 136), (256, 512, 512)])
def test_the_prepared_weight_holds_every_number_where_its_lane_looks(n: int, k: int, group_size: int) -> None:
    q = torch.randint(0, 16, (k, n), dtype=torch.int32, generator=torch.Generator().manual_seed(3))
    words = int4_order.packed(pack(q), problem_of(1, n, k, group_size)).view(torch.int32)
    stripes, chunks = words.shape[:2]
    found = torch.zeros((chunks * 32, stripes * 32), dtype=torch.int32)
    for lane in range(32):
        for word in range(4):
            for nibble in range(8):
                column = 4 * (lane // 4) + 2 * (word // 2) + nibble % 2
                row = 8 * (lane % 4) + 4 * (word % 2) + nibble // 2 % 2 * 2 + nibble // 4
                found[row::32, column::32] = ((words[:, :, lane, word] >> (4 * nibble)) & 15).T
    assert torch.equal(found[:k, :n], q)
    assert not found[k:].any()
    assert not found[:, n:].any()
    assert torch.equal(unpack(pack(q)), q)


def test_prepared_tensors_have_shapes_without_values() -> None:
    problem = problem_of(1, 257, 512)
    real = GEMM_INT4.inputs(problem, "normal", torch.Generator().manual_seed(0))
    for name, values in (("packed", (real[1],)), ("factors", (real[2], real[3]))):
        made = MMA.prepare(name, values, problem, {})
        told = MMA.prepare(name, tuple(value.to("meta") for value in values), problem, {})
        assert (told.shape, told.dtype) == (made.shape, made.dtype)
        assert made.is_contiguous()


def test_a_weight_is_held_once_for_all_configs_and_row_counts() -> None:
    values = GEMM_INT4.inputs(problem_of(1, 64, 256), "normal", torch.Generator().manual_seed(0))
    made = [
        PreparedTensors(GEMM_INT4, MMA, problem_of(m, 64, 256), config).extend(values)[-2:]
        for m, config in ((1, config_of(64, 8, (1, 4))), (64, config_of(32, 32, (1, 4))))
    ]
    assert all(one is other for one, other in zip(*made, strict=True))


# what runs, and with which configs


def test_every_reason_is_given() -> None:
    old = Device("cuda", 0, "Tesla T4", "sm_75", 40, 16 << 30, 4 << 20)
    odd = Problem("gemm_int4", dict(problem_of(300, 64, 128).dims), {"contiguous": False})
    assert [reason.split()[0] for reason in MMA.unsupported(odd, old)] == ["tensors", "it", "m=300"]
    assert not list(MMA.unsupported(problem_of(64, 33, 136, 136), A100))


@pytest.mark.parametrize("device", [A100, H200], ids=["sm_80", "sm_90"])
def test_spaces_are_small_and_hold_their_default(device: Device) -> None:
    problems = [problem_of(m, n, k) for m in (1, 7, 16, 33, 64, 256) for n, k in ((4096, 4096), (28672, 4096))]
    problems += [GEMM_INT4.problem_of(dims) for dims in GEMM_INT4.examples]
    for problem in problems:
        space = MMA.space(problem, device)
        assert 1 <= len(space) <= 110
        assert MMA.default(problem, device) in space
        assert device is H200 or all(config["cluster"] == 1 for config in space)


def test_one_variant_serves_several_row_counts() -> None:
    config = config_of(64, 16, (1, 8), 4)
    keys = {variant.key for m in (9, 16) for variant in MMA.variants(problem_of(m, 4096, 4096), config, H200, NOTHING)}
    assert len(keys) == 1


def test_the_plugin_offers_it() -> None:
    assert [each.name for each in gemm_int4_implementations()] == ["cuda.mma", "cuda.wgmma"]
    assert "cuda.mma" in [each.name for each in registry.implementations("gemm_int4")]


COMPILED = [
    (16, 4096, 4096, 128, config_of(64, 16, (1, 8), 4)),
    (1, 28672, 4096, 128, config_of(64, 8, (1, 8), 1, 8)),
    (64, 4096, 14336, 128, config_of(64, 32, (1, 4), 2)),
    (64, 4096, 4096, 32, config_of(32, 32, (2, 4), 1)),
]


@pytest.mark.parametrize(
    ("m", "n", "k", "group_size", "config", "device"),
    [
        pytest.param(
            *case, device, id=f"{'-'.join(map(str, case[:4]))}-config{place}-{architecture}",
            marks=pytest.mark.thorough if device is A100 and place else (),
        )
        for place, case in enumerate(COMPILED)
        for device, architecture in ((A100, "sm_80"), (H200, "sm_90a"))
    ],
)  # fmt: skip
@pytest.mark.few(1)
def test_what_is_compiled_spills_nothing(
    m: int, n: int, k: int, group_size: int, config: Config, device: Device
) -> None:
    problem = problem_of(m, n, k, group_size)
    there = {**config, "cluster": 1} if device is A100 else config
    assert there in MMA.space(problem, device)
    for variant in MMA.variants(problem, there, device, NOTHING):
        assert MMA.compile(variant, device.target).resources["spill_bytes"] == 0


# numerics on the CPU: the kernel's text, with the emulated instructions in place of kernels/tensor_core.cuh

CASES = [
    (problem_of(1, 64, 1408), config_of(64, 8, (1, 4), 1, 8)),
    (problem_of(3, 33, 256, 64, dtype="float16"), config_of(32, 8, (1, 4))),
    (problem_of(17, 160, 384, 32), config_of(64, 16, (2, 4), 2)),
    (problem_of(5, 72, 136, 136, symmetric=True, dtype="float16"), config_of(64, 8, (1, 4))),
    (problem_of(33, 96, 1024, 128, symmetric=True), config_of(32, 64, (1, 8))),
    (problem_of(32, 128, 1024, 128, dtype="float16"), config_of(64, 32, (1, 4), 2)),
    (problem_of(2, 40, 2560, 64), config_of(32, 8, (2, 4), 2)),
    (problem_of(9, 36, 264, 264, aligned=False), config_of(32, 16, (1, 4))),
    (problem_of(12, 64, 1024, 32, symmetric=True, dtype="float16"), config_of(64, 16, (1, 4), 8)),
]
DIFFERENT = (0, 1, 2, 7)
"""One token and deep prefetching, float16 with odd columns, a cluster with short groups, and what is not aligned."""


def built_for_cpu(launch: Launch, folder: Path) -> ctypes.CDLL:
    """The kernel for the CPU; a program that takes y and the three tensors it reads, each of those with its bytes."""
    whole = read_source("registry_cuda.kernels", "number.cuh", "tensor_core.cuh", "dependent.cuh", "gemm_int4.cu")
    assert launch.kernel.source == whole
    cluster = launch.cluster[0] if launch.cluster else 1
    extents = [*launch.grid, cluster, launch.options["block"], launch.shared_bytes]
    text = "\n".join(
        [
            '#include "cuda_on_cpu.hpp"',
            *(f"#define {name} {nvrtc.macro(name, value)}" for name, value in launch.constants.items()),
            read_source("registry_cuda.kernels", "number.cuh"),
            '#include "clusters_on_cpu.hpp"',
            "void launch_dependents() {}",
            "void await_kernel_ahead() {}",
            read_source("registry_cuda.kernels", "gemm_int4.cu"),
            'extern "C" const char *launch(T *y, const T *a, long long a_bytes, const Words *packed,',
            "    long long packed_bytes, const Factors *factors, long long factors_bytes, long long m) {",
            "  cpu::watched.clear();",
            "  cpu::watch(a, a_bytes), cpu::watch(packed, packed_bytes), cpu::watch(factors, factors_bytes);",
            f"  return cpu::run_grid({', '.join(map(str, extents))}, gemm_int4, y, a, packed, factors, m);",
            "}",
        ]
    )
    (folder / "kernel.cpp").write_text(text)
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-w", f"-I{Path(__file__).parent / 'cuda_on_cpu'}"]
    command = ["g++", *flags, str(folder / "kernel.cpp"), "-o", str(folder / "kernel.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(folder / "kernel.so"))
    library.launch.restype = ctypes.c_char_p
    return library


SOURCES = (("packed", 1, 2), ("factors", 2, 4))


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        pytest.param(*case, id=str(place), marks=() if place in DIFFERENT else pytest.mark.thorough)
        for place, case in enumerate(CASES)
    ],
)
@pytest.mark.few(1)
def test_the_kernel_is_right_on_every_input_kind(problem: Problem, config: Config, tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    assert config in MMA.space(problem, H200)
    launch = MMA.launch(problem, config, H200)
    assert launch.args == ("y", "a", "packed", "factors", problem.m)
    library = built_for_cpu(launch, tmp_path)
    for kind in GEMM_INT4.kinds:
        inputs = GEMM_INT4.inputs(problem, kind, torch.Generator().manual_seed(1))
        check(kind, problem, run(library, problem, inputs), inputs)


def run(library: ctypes.CDLL, problem: Problem, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """y, after a look at what was written beside it."""
    count, beside = problem.m * problem.n, 256
    room = torch.full((count + 2 * beside,), 99.0, dtype=inputs[0].dtype)
    prepared = [MMA.prepare(name, inputs[place:end], problem, {}) for name, place, end in SOURCES]
    arguments: list[object] = [ctypes.c_void_p(room[beside:].data_ptr())]
    for tensor in (inputs[0], *prepared):
        arguments += [ctypes.c_void_p(tensor.data_ptr()), ctypes.c_longlong(tensor.nbytes)]
    fault = library.launch(*arguments, ctypes.c_longlong(problem.m))
    assert fault is None, fault
    assert bool((room[:beside] == 99.0).all() and (room[beside + count :] == 99.0).all())
    return room[beside : beside + count].view(problem.m, problem.n)


def check(kind: str, problem: Problem, y: torch.Tensor, inputs: tuple[torch.Tensor, ...]) -> None:
    (reference,) = numerics.reference64(GEMM_INT4, inputs)
    tolerance, dtype = GEMM_INT4.tolerance, str(problem.dtype)
    allowed = tolerance.rtol[dtype] * tolerance.scale(problem, reference) + tolerance.atol[dtype]
    error = (y.double() - reference).abs()
    expected = reference.to(torch_dtype(dtype)).double()
    same = (y.double() == expected) | (y.double().isnan() & expected.isnan())
    assert bool((same | (error <= allowed)).all()), f"{kind}: worst {error[~same].max():.3g}"
