"""Kernels of a decode step that begin early: of what the kernel ahead writes they read nothing before they wait."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from registry.backends.cuda import nvrtc
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.errors import CompileError
from registry.implementation import Implementation, Launch

from ..tiers import THOROUGH
from .test_triton import A100, DECODE, H200, MI300, default_variants, problem_of

INT4 = {"n": 6144, "k": 4096, "group_size": 128, "bits": 4, "symmetric": False}
ROTARY = {
    "batch": 2, "q_len": 1, "heads": 32, "kv_heads": 8, "head_dim": 128, "rotary_dim": 128, "style": "neox",
    "kv_len": 64, "positions": False,
}  # fmt: skip
IN_CUDA: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gemm_int4", {"m": 1, **INT4}),
    ("gemm_int4", {"m": 16, **INT4}),
    ("attention_decode", {**DECODE, "batch": 1, "page": 16}),
    ("attention_decode", {**DECODE, "batch": 1, "page": False, "kv_dtype": "float8_e4m3fn"}),
)
IN_TRITON: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("fused_add_rms_norm", "triton.row", {"rows": 1, "cols": 4096, "weight": True}),
    ("silu_and_mul", "triton.block", {"rows": 1, "cols": 14336}),
    ("rotary_kv_append", "triton.block", ROTARY),
    ("silu_and_mul_backward", "triton.block", {"rows": 1, "cols": 14336}),
)
WAIT, TRIGGER = "griddepcontrol.wait", "griddepcontrol.launch_dependents"


def implementation(op: str, name: str) -> Implementation:
    (found,) = (one for one in Catalog().implementations(op) if one.name == name)
    return found


def launch_of(op: str, name: str, dims: dict[str, Any], device: Device) -> Launch:
    one, problem = implementation(op, name), problem_of(op, dims)
    made = one.launch(problem, one.default(problem, device), device)  # type: ignore[attr-defined]
    assert isinstance(made, Launch)
    return made


def cuda_assembly(launch: Launch) -> str:
    """The PTX that NVRTC makes of a launch's kernel for an H200."""
    from cuda.bindings import nvrtc as compiler

    macros = [f"-D{name}={nvrtc.macro(name, value)}" for name, value in launch.constants.items()]
    folders = [f"-I{folder}" for folder in nvrtc.include_paths()]
    options = ["--gpu-architecture=compute_90a", "-std=c++17", *macros, *folders]
    _, program = compiler.nvrtcCreateProgram(launch.kernel.source.encode(), b"kernel.cu", 0, [], [])
    (status,) = compiler.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    assert not int(status)
    text = b" " * compiler.nvrtcGetPTXSize(program)[1]
    compiler.nvrtcGetPTX(program, text)
    compiler.nvrtcDestroyProgram(program)
    return text.decode()


@pytest.mark.parametrize(("op", "dims"), IN_CUDA, ids=str)
@pytest.mark.few(2)
def test_a_cuda_kernel_reads_weights_alone_before_it_waits(op: str, dims: dict[str, Any]) -> None:
    pytest.importorskip("cuda.core")
    text = cuda_assembly(launch_of(op, "cuda.mma", dims, H200))
    before, after = text.split(WAIT)
    assert TRIGGER in before
    # an int4 product has its first chunks of weights and factors on the way; decoding nothing
    assert bool(re.search(r"ld\.global", before)) == (op == "gemm_int4")
    assert not re.search(r"st\.global|ld\.global\.nc", before)
    # what the compiler may take for constant, it may read before the wait
    assert not re.search(r"ld\.global\.nc", after)
    assert re.search(r"st\.global", after)


@pytest.mark.parametrize(
    ("op", "name", "dims"), [*IN_TRITON[:2], *(pytest.param(*case, marks=THOROUGH) for case in IN_TRITON[2:])], ids=str
)
def test_a_triton_kernel_reads_and_writes_nothing_before_it_waits(op: str, name: str, dims: dict[str, Any]) -> None:
    one = implementation(op, name)
    (variant,) = default_variants(one, problem_of(op, dims), H200)
    artifact = one.compile(variant, H200.target)
    (path,) = Path(artifact.path).parent.glob("*.ptx")
    before, after = path.read_text().split(WAIT)
    assert TRIGGER in before
    assert not re.search(r"(ld|st)\.global", before)
    assert not re.search(r"ld\.global\.nc", after)


@pytest.mark.parametrize(("device", "dependent"), [(H200, True), (A100, False), (MI300, False)], ids=str)
@pytest.mark.parametrize(
    ("op", "name", "dims"), [*IN_TRITON, *((op, "cuda.mma", dims) for op, dims in IN_CUDA)], ids=str
)
@pytest.mark.few(8)
def test_only_gpus_that_launch_dependents_are_asked_to(
    op: str, name: str, dims: dict[str, Any], device: Device, dependent: bool
) -> None:
    if name == "cuda.mma" and device is MI300:
        assert list(implementation(op, name).unsupported(problem_of(op, dims), device))
        return
    launch = launch_of(op, name, dims, device)
    assert launch.constants["DEPENDENT"] is dependent
    assert launch.options.get("launch_pdl", False) is dependent


def test_a_triton_kernel_that_never_waits_is_refused() -> None:
    one = implementation("silu_and_mul", "triton.block")
    (variant,) = default_variants(one, problem_of("silu_and_mul", {"rows": 1, "cols": 14336}), A100)
    variant.spec["options"]["launch_pdl"] = True
    with pytest.raises(CompileError, match="never waits for the kernel ahead") as fault:
        one.compile(variant, H200.target)
    assert "gdc_wait" in fault.value.hint
