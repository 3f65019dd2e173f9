"""CUDA kernels in the box: they compile for sm_80 and sm_90a, and the text that compiles is right when run on a CPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import registry_cuda
from registry.artifact import Signature
from registry.backends.cuda import nvrtc
from registry.contracts import GELU, RMS_NORM, SOFTMAX, SQUARE
from registry.device import Device
from registry.implementation import Implementation, Launch
from registry.problem import Arguments, Problem, Value, torch_dtype
from registry_cuda.elementwise import VectorElementwise
from registry_cuda.forms import Form, RowLength
from registry_cuda.rows import CudaRmsNorm, CudaSoftmax, cluster, looped, row

from ..tiers import THOROUGH, one_of_each

pytest.importorskip("cuda.core")

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20)
A100 = Device("cuda", 0, "NVIDIA A100", "sm_80", 108, 80 << 30, 40 << 20)
NOTHING = Signature(Arguments("", {}), {})

ROWS = [CudaSoftmax(row), CudaSoftmax(cluster), CudaSoftmax(looped), CudaRmsNorm(row), CudaRmsNorm(cluster)]
ROWS.append(CudaRmsNorm(looped))
LENGTHS = ((4097, "float16"), (128256, "float32"), (32000, "bfloat16"))
NAMES = [f"{implementation.op}-{implementation.name}" for implementation in ROWS]


def rows_problem(op: str, cols: int, dtype: str, rows: int = 7, **traits: Value) -> Problem:
    return Problem(op, {"rows": rows, "cols": cols, "dtype": dtype}, traits)


def compile_config(implementation: Implementation, problem: Problem, device: Device) -> None:
    config = implementation.default(problem, device)
    assert config in implementation.space(problem, device)
    for variant in implementation.variants(problem, config, device, NOTHING):
        implementation.compile(variant, device.target)


@pytest.mark.parametrize(
    ("implementation", "device"),
    [
        pytest.param(one, device, id=f"{name}-{architecture}", marks=THOROUGH if device is A100 and place else ())
        for place, (name, one) in enumerate(zip(NAMES, ROWS, strict=True))
        for device, architecture in ((A100, "sm_80"), (H200, "sm_90a"))
    ],
)
@pytest.mark.few(2)
def test_defaults_over_rows_compile(implementation: Implementation, device: Device) -> None:
    compile_over_rows(implementation, device, LENGTHS[ROWS.index(implementation) % len(LENGTHS)])


@pytest.mark.thorough
@pytest.mark.parametrize("device", [A100, H200], ids=["sm_80", "sm_90a"])
@pytest.mark.parametrize("implementation", ROWS, ids=NAMES)
def test_defaults_over_rows_of_every_dtype_compile(implementation: Implementation, device: Device) -> None:
    compile_over_rows(implementation, device, *LENGTHS)


def compile_over_rows(implementation: Implementation, device: Device, *lengths: tuple[int, str]) -> None:
    """Rows of each length and dtype, aligned or not."""
    for cols, dtype in lengths:
        for aligned in (True, False):
            problem = rows_problem(implementation.op, cols, dtype, aligned=aligned)
            if not list(implementation.unsupported(problem, device)):
                compile_config(implementation, problem, device)


@pytest.mark.parametrize("form", one_of_each([row, cluster, looped]), ids=lambda form: form.name)
@pytest.mark.thorough
def test_a_float32_weight_beside_halves_compiles(form: Form) -> None:
    implementation = CudaRmsNorm(form)
    assert implementation.mixed
    for cols, dtype in ((8200, "float16"), (32000, "bfloat16")):
        for aligned in (True, False):
            problem = rows_problem("rms_norm", cols, dtype, aligned=aligned, mixed=True)
            config = implementation.default(problem, H200)
            (variant,) = implementation.variants(problem, config, H200, NOTHING)
            artifact = implementation.compile(variant, H200.target)
            assert not (aligned and artifact.resources.get("spill_bytes", 0))


@pytest.mark.parametrize(
    ("dtype", "device"),
    one_of_each(
        [
            pytest.param(dtype, device, id=f"{dtype}-{name}")
            for device, name in ((A100, "sm_80"), (H200, "sm_90a"))
            for dtype in ("bfloat16", "float32")
        ],
        lambda dtype, device: device.architecture,
    ),
)
@pytest.mark.few(1)
def test_elementwise_defaults_compile(device: Device, dtype: str) -> None:
    compile_config(VectorElementwise("square"), Problem("square", {"n": 1 << 24, "dtype": dtype}), device)
    for approximate in ("none", "tanh"):
        dims: dict[str, Value] = {"n": 4099, "dtype": dtype, "approximate": approximate}
        compile_config(VectorElementwise("gelu"), Problem("gelu", dims), device)


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("form", [row, cluster, looped], ids=lambda form: form.name)
def test_a_form_that_says_that_rows_fit_has_a_config(form: Form, itemsize: int) -> None:
    edges = {2**power + off for power in range(21) for off in (-1, 0, 1, 8)}
    for cols in sorted({*edges, *range(1, 300), 4099, 50_257, 128_256}):
        length = RowLength(cols, itemsize, aligned=True)
        if cols and (form is not cluster or cols * itemsize >= cluster.shortest_bytes):
            assert form.space(length).is_empty == bool(form.misfit(length)), length


def test_spaces_are_small_and_hold_what_launches() -> None:
    for implementation in ROWS:
        for cols in (1, 31, 1024, 8192, 32000, 151_936, 151_937):
            problem = rows_problem(implementation.op, cols, "bfloat16")
            if list(implementation.unsupported(problem, H200)):
                continue
            space = implementation.space(problem, H200)
            assert 1 <= len(space) <= 60
            assert all(launch_of(implementation, problem, config).grid[0] >= 7 // 16 for config in space)
    assert len(VectorElementwise("square").space(Problem("square", {"n": 1 << 20, "dtype": "float32"}), H200)) <= 60


def test_variants_are_shared_between_row_counts() -> None:
    implementation = CudaSoftmax(row)
    keys = set()
    for count in (1, 4096):
        problem = rows_problem("softmax", 1024, "bfloat16", rows=count)
        config = implementation.default(problem, H200)
        keys |= {variant.key for variant in implementation.variants(problem, config, H200, NOTHING)}
    assert len(keys) == 1


def test_every_reason_is_given() -> None:
    problem = Problem("softmax", {"rows": 4, "cols": 64, "dtype": "float64"}, {"contiguous": False})
    reasons = list(CudaSoftmax(row).unsupported(problem, H200))
    assert reasons == ["float64 is not one of float32, float16, bfloat16", "tensors are not contiguous"]
    long = list(CudaSoftmax(row).unsupported(rows_problem("softmax", 128_256, "bfloat16"), H200))
    assert long == ["a row of 128256 does not fit in registers (limit 65536)"]
    old = list(CudaSoftmax(cluster).unsupported(rows_problem("softmax", 64, "bfloat16"), A100))
    assert [reason.split()[0] for reason in old] == ["clusters", "a"]


def test_a_kernel_in_the_fingerprint_includes_the_shared_headers() -> None:
    assert len({implementation.fingerprint() for implementation in ROWS}) == 2
    assert '#line 1 "row.cuh"' in CudaSoftmax.source


def test_hooks_bring_every_implementation() -> None:
    names = {
        implementation.op + "/" + implementation.name
        for hook in ("square", "gelu", "softmax", "softmax_backward", "rms_norm", "rms_norm_backward")
        for implementation in getattr(registry_cuda, f"{hook}_implementations")()
    }
    rows = {f"{op}/cuda.{form}" for op in ("softmax", "rms_norm") for form in ("row", "cluster", "online")}
    copied = {f"{op}/cuda.async" for op in ("softmax", "softmax_backward", "rms_norm")}
    others = {"square/cuda.vector", "square/cuda.inline", "gelu/cuda.vector", "rms_norm_backward/cuda.staged"}
    assert names == rows | copied | others


def launch_of(implementation: Implementation, problem: Problem, config: object) -> Launch:
    launch = implementation.launch(problem, config, H200)  # type: ignore[attr-defined]
    assert isinstance(launch, Launch)
    return launch


# numerics on the CPU: blocks one after another, their threads as real threads (clusters need a GPU)

CASES: list[tuple[Implementation, dict[str, Value], dict[str, int]]] = [
    (CudaSoftmax(row), {"rows": 5, "cols": 200, "dtype": "bfloat16"}, {"threads": 32, "rows": 2, "vector_bytes": 16}),
    (CudaSoftmax(row), {"rows": 3, "cols": 301, "dtype": "float16"}, {"threads": 64, "rows": 1, "vector_bytes": 2}),
    (CudaSoftmax(looped), {"rows": 2, "cols": 1100, "dtype": "float32"}, {"threads": 128, "items": 1}),
    (CudaRmsNorm(row), {"rows": 3, "cols": 264, "dtype": "bfloat16"}, {"threads": 64, "rows": 2, "vector_bytes": 8}),
    (CudaRmsNorm(looped), {"rows": 2, "cols": 1100, "dtype": "float32"}, {"threads": 128, "items": 1}),
    (
        VectorElementwise("gelu"),
        {"n": 1003, "dtype": "float16", "approximate": "tanh"},
        {"block": 128, "vector_bytes": 8, "items": 1, "blocks_per_multiprocessor": 0},
    ),
    (
        VectorElementwise("gelu"),
        {"n": 777, "dtype": "float32", "approximate": "none"},
        {"block": 128, "vector_bytes": 16, "items": 2, "blocks_per_multiprocessor": 0},
    ),
    (
        VectorElementwise("square"),
        {"n": 5001, "dtype": "bfloat16"},
        {"block": 128, "vector_bytes": 16, "items": 2, "blocks_per_multiprocessor": 8},
    ),
]
OPS = {op.name: op for op in (SQUARE, GELU, SOFTMAX, RMS_NORM)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    return tmp_path_factory.mktemp("cuda_on_cpu")


def built_for_cpu(launch: Launch, parameters: str, folder: Path) -> ctypes.CDLL:
    """The kernel's very text, compiled for the CPU; ``parameters`` are the C types of what it takes."""
    names = [f"argument{place}" for place in range(len(launch.args))]
    declared = ", ".join(f"{kind} {name}" for kind, name in zip(parameters.split(","), names, strict=True))
    text = "\n".join(
        [
            '#include "blocks_on_cpu.hpp"',
            *(f"#define {name} {nvrtc.macro(name, value)}" for name, value in launch.constants.items()),
            launch.kernel.source,
            f'extern "C" void launch({declared}) {{',
            f"  run_grid({launch.grid[0]}, {launch.options['block']}, {launch.kernel.name}, {', '.join(names)});",
            "}",
        ]
    )
    (folder / "kernel.cpp").write_text(text)
    flags = ["-std=c++20", "-O0", "-shared", "-fPIC", "-pthread", "-w", f"-I{Path(__file__).parent / 'cuda_on_cpu'}"]
    command = ["g++", *flags, str(folder / "kernel.cpp"), "-o", str(folder / "kernel.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(folder / "kernel.so"))


def c_arguments(launch: Launch, values: dict[str, object]) -> tuple[str, list[object]]:
    kinds: list[str] = []
    arguments: list[object] = []
    for argument in launch.args:
        value = values[argument] if isinstance(argument, str) else argument
        if isinstance(value, torch.Tensor):
            kinds.append("T *")
            arguments.append(ctypes.c_void_p(value.data_ptr()))
        else:
            kinds.append("float" if isinstance(value, float) else "long long")
            arguments.append(ctypes.c_float(value) if isinstance(value, float) else ctypes.c_longlong(value))  # type: ignore[arg-type]
    return ",".join(kinds), arguments


@pytest.mark.parametrize(
    ("implementation", "dims", "config"), CASES, ids=[f"{i.op}-{i.name}-{dims['dtype']}" for i, dims, _ in CASES]
)
@pytest.mark.few(3)
def test_kernels_are_right_on_every_input_kind(
    implementation: Implementation, dims: dict[str, Value], config: dict[str, int], folder: Path
) -> None:
    op = OPS[implementation.op]
    problem = Problem(op.name, dims)
    assert config in implementation.space(problem, H200)
    launch = launch_of(implementation, problem, config)
    if config.get("blocks_per_multiprocessor"):
        launch = replace(launch, grid=(1,))  # so that the one block strides
    own = folder / "-".join(map(str, (op.name, implementation.name, *dims.values())))
    own.mkdir()
    library = None
    for kind in op.kinds:
        inputs = op.inputs(problem, kind, torch.Generator().manual_seed(1))
        y = torch.full_like(inputs[0], 99.0)
        kinds, arguments = c_arguments(launch, dict(zip((*op.parsed.names, "y"), (*inputs, y), strict=True)))
        library = library or built_for_cpu(launch, kinds, own)
        library.launch(*arguments)
        check(op.name, kind, problem, y, inputs)


@pytest.mark.parametrize("vector_bytes", one_of_each([8, 2]))
def test_a_float32_weight_beside_halves_is_right(vector_bytes: int, folder: Path) -> None:
    implementation = CudaRmsNorm(row)
    cols = 264 if vector_bytes == 8 else 301
    problem = rows_problem("rms_norm", cols, "bfloat16", rows=3, mixed=True)
    launch = launch_of(implementation, problem, {"threads": 64, "rows": 1, "vector_bytes": vector_bytes})
    own = folder / f"mixed-{vector_bytes}"
    own.mkdir()
    x, _, eps = RMS_NORM.inputs(problem, "normal", torch.Generator().manual_seed(1))
    inputs = (x, torch.randn(cols), eps)
    y = torch.full_like(x, 99.0)
    kinds, arguments = c_arguments(launch, dict(zip((*RMS_NORM.parsed.names, "y"), (*inputs, y), strict=True)))
    built_for_cpu(launch, kinds.replace("T *,float", "float *,float"), own).launch(*arguments)
    check("rms_norm", "normal", problem, y, inputs)


def check(name: str, kind: str, problem: Problem, y: torch.Tensor, inputs: tuple[object, ...]) -> None:
    op = OPS[name]
    wide = [value.double() if isinstance(value, torch.Tensor) else value for value in inputs]
    reference = op.reference(*wide)
    assert isinstance(reference, torch.Tensor)
    tolerance, dtype = op.tolerance, str(problem.dtype)
    allowed = tolerance.rtol[dtype] * tolerance.scale(problem, reference) + tolerance.atol[dtype]
    expected = reference.to(torch_dtype(dtype)).double()
    error = (y.double() - reference).abs()
    same = (y.double() == expected) | (y.double().isnan() & expected.isnan())
    assert bool((same | (error <= allowed)).all()), f"{kind}: worst {error[~same].max():.3g}"
