"""``registry compile``: what compilers say of a plugin file's kernels, without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from registry.backends.cuda import nvrtc
from registry.backends.estimate import occupancy

from .conftest import Command

HEAD = """\
import registry, triton, triton.language as tl
from registry import Launch, Space
from registry.backends import CppImplementation, CppKernel, CudaImplementation, CudaKernel, TritonImplementation

@triton.jit
def squared(y, x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(y + at, value * value, mask=at < n)

CUDA = CudaKernel('''
extern "C" __global__ void square_cuda(float *y, const float *x, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    __shared__ float held[256];
    held[threadIdx.x] = i < n ? x[i] : 0;
    __syncthreads();
    if (i < n) y[i] = held[threadIdx.x] * held[threadIdx.x ^ (n < 0)];
}
''', "square_cuda")
CPP = CppKernel('''
void square_cpp(float *y, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * x[i];
}
''', "square_cpp")

class Blocks(TritonImplementation):
    op, name = "square", "mine.blocks"
    def space(self, problem, device):
        return Space(BLOCK=[64, 256], num_warps=[1, 2])
    def launch(self, problem, config, device):
        constants = {"BLOCK": config["BLOCK"]}
        return Launch(squared, (-(-problem.n // config["BLOCK"]),), ("y", "x", problem.n), constants, config)

class Cuda(CudaImplementation):
    op, name = "square", "mine.cuda"
    def launch(self, problem, config, device):
        return Launch(CUDA, (-(-problem.n // 256),), ("y", "x", problem.n), options={"block": 256})

class Host(CppImplementation):
    op, name = "square", "mine.host"
    def launch(self, problem, config, device):
        return Launch(CPP, (1,), ("y", "x", problem.n))

@registry.implements("square")
def mine():
    return [Blocks(), Cuda(), Host()]
"""


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    file = tmp_path / "kernels.py"
    file.write_text(HEAD)
    return file


@pytest.fixture
def two_problems(tmp_path: Path) -> Path:
    file = tmp_path / "two.yaml"
    file.write_text("square:\n  - {n: [4096, 8192], dtype: float32}\n")
    return file


@pytest.mark.skipif(bool(nvrtc.missing()), reason="no NVRTC")
def test_every_variant_of_a_plugin_file_is_compiled_for_each_target(
    command: Command, kernels: Path, two_problems: Path
) -> None:
    options = ["--arch", "sm_90", "--arch", "sm_80", "--plugin", kernels, "--shapes", two_problems, "--all"]
    told = command("registry", "compile", *options, "--json")
    assert told.code == 0
    data = json.loads(told.out)
    found = [(one["architecture"], one["implementation"]) for one in data["variants"]]
    assert sorted(found) == sorted(
        [(arch, "mine.blocks") for arch in ("sm_80", "sm_90") for _ in range(4)]
        + [("sm_80", "mine.cuda"), ("sm_90", "mine.cuda"), ("this host", "mine.host")]
    )
    assert all([problem["n"] for problem in one["problems"]] == [4096, 8192] for one in data["variants"])
    for one in data["variants"]:
        if one["implementation"] == "mine.host":
            assert (one["resources"], one["occupancy"], one["fault"]) == ({}, None, "")
            continue
        resources = one["resources"]
        assert resources["registers"] > 0
        assert resources["spill_bytes"] == 0
        assert resources["shared_bytes"] == (1024 if one["implementation"] == "mine.cuda" else 0)
        threads = 256 if one["implementation"] == "mine.cuda" else 32 * one["config"]["num_warps"]
        assert resources["threads"] == threads
        assert one["occupancy"] == occupancy(resources, one["architecture"])
    table = command("registry", "compile", *options)
    assert table.code == 0
    assert max(map(len, table.out.splitlines())) <= 80
    assert "square for sm_90: 5 variants" in table.out
    assert "and 1 problem more" in " ".join(table.out.split())
    assert "11 variants compiled, 0 failed" in table.out


def test_what_does_not_compile_is_told_once_with_its_line_and_exit_code_1(
    command: Command, kernels: Path, two_problems: Path
) -> None:
    kernels.write_text(kernels.read_text().replace("value * value,", "value * valve,"))
    names = "mine.blocks"
    told = command(
        "registry", "compile", "--arch", "sm_90", "--plugin", kernels, "--shapes", two_problems, "--all",
        "--implementations", names,
    )  # fmt: skip
    assert told.code == 1
    shown = " ".join(told.out.split())
    assert shown.count("valve is not defined") == 1
    assert "(2 problems, 4 configs)" in shown
    assert "kernels.py:9: " in shown
    assert "0 variants compiled, 4 failed" in told.out


def test_a_launch_that_does_not_fit_its_kernel_fails(command: Command, kernels: Path, two_problems: Path) -> None:
    kernels.write_text(kernels.read_text().replace('("y", "x", problem.n), constants', '("y", "x"), constants'))
    told = command("registry", "compile", "--arch", "sm_90", "--plugin", kernels, "--shapes", two_problems)
    assert told.code == 1
    assert "takes 3 arguments (y, x, n)" in " ".join(told.out.split())


def test_what_runs_without_compiling_is_told_as_out(command: Command) -> None:
    told = command("registry", "compile", "--arch", "sm_90", "--op", "square", "--implementations", "torch.native")
    assert told.code == 0
    assert "out square torch.native, sm_90: it has nothing to compile before it runs" in " ".join(told.out.split())
    assert "0 variants compiled, 0 failed" in told.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--arch", "sm90"], "'sm90' is no GPU architecture"),
        (["--arch", "sm_91"], "'sm_91' is no GPU architecture"),
        (["--arch", "sm_90", "--op", "sqare"], "did you mean square"),
        (["--arch", "sm_90", "--op", "square", "--implementations", "triton.blok"], "did you mean triton.block"),
        ([], "--arch"),
    ],
)
def test_bad_options_are_told(command: Command, options: list[str], message: str) -> None:
    told = command("registry", "compile", *options)
    assert told.code == 2
    assert message in told.err


def test_occupancy_is_limited_by_what_runs_out_first() -> None:
    # 64 warps an SM: by 65536 registers, by 32 blocks, by 228 KiB of shared memory of which a block costs one more
    assert occupancy({"registers": 32, "threads": 256, "shared_bytes": 0}, "sm_90") == 1.0
    assert occupancy({"registers": 255, "threads": 128, "shared_bytes": 0}, "sm_90") == 8 / 64
    assert occupancy({"registers": 16, "threads": 32, "shared_bytes": 0}, "sm_90") == 32 / 64
    assert occupancy({"registers": 32, "threads": 128, "shared_bytes": 113 * 1024}, "sm_90") == 8 / 64
    assert occupancy({"registers": 32, "threads": 256}, "gfx942") is None


SLIPS = {
    "too few": ('Launch(CPP, (1,), ("y", "x", problem.n))', 'Launch(CPP, (1,), ("y", "x"))',
                "it takes 3 arguments (y, x, n), but the launch gives 2",
                "expected args=(...) with a name or a number for each of y, x, n"),
    "empty grid": ("Launch(CPP, (1,)", "Launch(CPP, (problem.n // 10**6,)", "the grid is (0,), so that nothing runs",
                   "does a division of the size round down?"),
}  # fmt: skip


@pytest.mark.parametrize(("right", "wrong", "message", "remedy"), SLIPS.values(), ids=list(SLIPS))
@pytest.mark.few(1)
def test_a_wrong_launch_is_no_candidate_of_a_dry_run_and_does_not_compile(
    command: Command, kernels: Path, two_problems: Path, right: str, wrong: str, message: str, remedy: str
) -> None:
    kernels.write_text(HEAD.replace(right, wrong))
    options = ["--plugin", kernels, "--shapes", two_problems, "--implementations", "mine.host"]
    compiled = command("registry", "compile", "--arch", "sm_90", *options)
    assert compiled.code == 1
    assert "0 variants compiled, 1 failed" in compiled.out
    planned = command("tune", "--dry-run", "--device", "cpu", *options)
    assert "with 0 candidates, 2 skipped" in planned.out
    for told in (compiled, planned):
        shown = " ".join(told.out.split())
        assert shown.count(message) == 1
        assert "kernels.py:4" in shown
        assert remedy in shown
