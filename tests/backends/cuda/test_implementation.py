"""CUDA C++ through NVRTC: what is compiled, cached, refused and packed. Nothing here needs a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import struct
import threading
import time
import types
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.artifact import Signature, Target, Variant
from registry.backends import kernel_limit
from registry.backends.cuda import CudaImplementation, CudaKernel, nvrtc, read_source
from registry.backends.cuda import launch as cuda_launch
from registry.backends.cuda.frame import Layout
from registry.backends.cuda.implementation import architecture_of, shared_limit
from registry.device import Device
from registry.dispatch.plans.written_plan import written_call
from registry.errors import CompileError, InvalidDefinitionError, NotLaunchedError, OutOfResourcesError
from registry.fingerprint import normalised_python
from registry.implementation import Launch
from registry.problem import Arguments, Problem, TensorSpec

pytest.importorskip("cuda.core")

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20)
A100 = Device("cuda", 0, "NVIDIA A100", "sm_80", 108, 80 << 30, 40 << 20)

SCALE = r"""
// y = FACTOR * x
extern "C" __global__ void __launch_bounds__(BLOCK) scale(float *y, const float *x, long long n, float factor) {
  long long i = (long long)blockIdx.x * BLOCK + threadIdx.x;
  if (i < n) y[i] = factor * x[i];
}
template <typename T, int N> __global__ void scale_by(T *y, const T *x) { y[threadIdx.x] = x[threadIdx.x] * T(N); }
"""


class Scale(CudaImplementation):
    """y = 2 x."""

    op = "square"
    name = "test.scale"
    source = SCALE
    kernel = "scale"
    args: tuple[str | int | float, ...] = ("y", "x", 8, 2.0)
    options: Mapping[str, Any] = {}
    shared_bytes = 0

    def launch(self, problem: Problem, config: Mapping[str, Any], device: Device) -> Launch:
        block = config.get("block", 128)
        return Launch(
            CudaKernel(self.source, self.kernel),
            grid=(-(-problem.n // block),),
            args=(*self.args[:2], problem.n, *self.args[3:]) if len(self.args) == 4 else self.args,
            constants={"BLOCK": block},
            options={"block": block, **self.options},
            shared_bytes=self.shared_bytes,
        )


def signature(n: int = 8, **values: Any) -> Signature:
    spec = TensorSpec.contiguous((n,), torch.float32)
    return Signature(Arguments("square", {"x": spec, **values}), {"y": spec})


def problem(n: int = 1000) -> Problem:
    return Problem("square", {"n": n, "dtype": "float32"})


def variant(implementation: CudaImplementation, device: Device = H200, **config: Any) -> Variant:
    (made,) = implementation.variants(problem(), config, device, signature())
    return made


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNEL_REGISTRY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "cuda"


@pytest.mark.parametrize("device", [A100, H200], ids=["sm_80", "sm_90a"])
def test_a_kernel_compiles_without_a_gpu_and_tells_its_resources(device: Device) -> None:
    artifact = Scale().compile(variant(Scale(), device, block=256), device.target)
    assert artifact.resources["threads"] == 256
    assert 0 < artifact.resources["registers"] <= 255
    assert artifact.resources["spill_bytes"] == 0
    found = nvrtc.read(Path(artifact.path))
    assert found is not None
    assert found.symbol == "scale"
    assert found.code.startswith(b"\x7fELF")


def test_template_instantiations_are_found_by_their_mangled_name() -> None:
    implementation = Scale()
    implementation.kernel, implementation.args = "scale_by<float, 3>", ("y", "x")
    found = nvrtc.read(Path(implementation.compile(variant(implementation, block=32), H200.target).path))
    assert found is not None
    assert found.symbol.startswith("_Z8scale_by")


def test_capability_9_is_compiled_with_its_own_instructions() -> None:
    assert architecture_of(H200.target) == "sm_90a"
    assert architecture_of(A100.target) == "sm_80"
    implementation = Scale()
    implementation.args = ()
    implementation.source = (
        'extern "C" __global__ void scale() { asm volatile("setmaxnreg.dec.sync.aligned.u32 40;"); }'
    )
    implementation.compile(variant(implementation), H200.target)


def test_bad_source_shows_the_compilers_line() -> None:
    implementation = Scale()
    implementation.args = ("y",)
    implementation.source = '#line 1 "mine.cu"\nextern "C" __global__ void scale(float *y) {\n  y[0] = missing;\n}\n'
    with pytest.raises(CompileError, match=r"mine\.cu\(2\): error: identifier \"missing\" is undefined"):
        implementation.compile(variant(implementation), H200.target)


@pytest.mark.parametrize(
    ("shared", "dynamic"), [(300_000, 0), (0, 300_000)], ids=["static beyond ptxas", "dynamic beyond the device"]
)
def test_too_much_shared_memory_is_out_of_resources(shared: int, dynamic: int) -> None:
    implementation = Scale()
    implementation.shared_bytes, implementation.args = dynamic, ("y",)
    implementation.source = (
        'extern "C" __global__ void scale(float *y) {'
        f"  __shared__ float held[{shared // 4 + 1}];"
        "  held[threadIdx.x] = y[0]; __syncthreads(); y[threadIdx.x] = held[threadIdx.x ^ 1]; }"
    )
    with pytest.raises(OutOfResourcesError, match="shared"):
        implementation.compile(variant(implementation, block=32), H200.target)
    assert shared_limit(Target("cuda", "sm_110")) == shared_limit(Target("cuda", "sm_90a")) == 227 * 1024
    assert shared_limit(Target("cuda", "sm_999")) == 99 * 1024
    assert shared_limit(H200.target) == 227 * 1024 > shared_limit(Target("cuda", "sm_86"))


def test_too_many_threads_are_out_of_resources() -> None:
    with pytest.raises(OutOfResourcesError, match="2048 threads a block"):
        Scale().compile(variant(Scale(), block=2048), H200.target)


def test_a_second_compile_reads_the_cache(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Scale().compile(variant(Scale()), H200.target)
    assert [path.name for path in own_cache.iterdir()] == [Path(first.path).name]
    monkeypatch.setattr(nvrtc, "_compile", lambda source: pytest.fail("compiled again"))
    assert Scale().compile(variant(Scale()), H200.target) == first


@pytest.mark.parametrize("damage", [b"", b"half", b"{}\ncode"])
def test_a_damaged_cache_entry_is_made_again(own_cache: Path, damage: bytes) -> None:
    first = Scale().compile(variant(Scale()), H200.target)
    whole = Path(first.path).read_bytes()
    Path(first.path).write_bytes(damage or whole[:-10])
    assert nvrtc.read(Path(first.path)) is None
    assert Scale().compile(variant(Scale()), H200.target) == first
    assert nvrtc.read(Path(first.path)) is not None


def test_the_cache_key_is_the_exact_text_and_everything_else() -> None:
    base = nvrtc.Source(SCALE, "scale", {"BLOCK": 128}, "sm_90a")
    assert nvrtc.Source(SCALE, "scale", {"BLOCK": 128}, "sm_90a").key == base.key
    others = [
        nvrtc.Source(SCALE.replace("factor * x", "factor + x"), "scale", {"BLOCK": 128}, "sm_90a"),
        nvrtc.Source("#define F(x)\n" + SCALE, "scale", {"BLOCK": 128}, "sm_90a"),
        nvrtc.Source("#define F (x)\n" + SCALE, "scale", {"BLOCK": 128}, "sm_90a"),
        nvrtc.Source(SCALE, "scale", {"BLOCK": 256}, "sm_90a"),
        nvrtc.Source(SCALE, "scale", {"BLOCK": 128}, "sm_80"),
        nvrtc.Source(SCALE, "scale", {"BLOCK": 128}, "sm_90a", {"maxrregcount": 32}),
    ]
    assert len({source.key for source in (base, *others)}) == 7


def test_options_reach_the_compiler() -> None:
    text = SCALE.replace("factor * x[i]", "expf(x[i]) / factor")
    plain = nvrtc.compile_source(nvrtc.Source(text, "scale", {"BLOCK": 128}, "sm_80"))
    fast = nvrtc.compile_source(nvrtc.Source(text, "scale", {"BLOCK": 128}, "sm_80", {"use_fast_math": True}))
    assert len(fast.code) < len(plain.code)


def test_a_kernel_without_macros_compiles() -> None:
    text = 'extern "C" __global__ void plain(float *y) { y[threadIdx.x] = 1; }'
    assert nvrtc.compile_source(nvrtc.Source(text, "plain", {}, "sm_80")).symbol == "plain"


def test_an_unknown_option_is_refused() -> None:
    implementation = Scale()
    implementation.options = {"num_warps": 4}
    with pytest.raises(
        InvalidDefinitionError,
        match=r"unknown option 'num_warps' in the Launch at (.|\n)*known: block",
    ):
        variant(implementation)


def test_variants_are_shared_between_sizes() -> None:
    one, other = (Scale().variants(problem(n), {"block": 64}, H200, signature())[0].key for n in (1000, 123_457))
    assert one == other


class Listed(Scale):
    """A constant that no macro can be."""

    def launch(self, problem: Problem, config: Mapping[str, Any], device: Device) -> Launch:
        return replace(super().launch(problem, config, device), constants={"BLOCK": [1, 2]})


def test_a_constant_that_is_no_macro_is_told_with_the_line_of_the_launch() -> None:
    told = r"Launch at .*:\d+: the constant BLOCK is \[1, 2\], which is no macro"
    with pytest.raises(InvalidDefinitionError, match=told):
        variant(Listed())


def test_macros_read_as_c() -> None:
    assert [nvrtc.macro("x", value) for value in (True, 3, 0.5, "__half")] == ["1", "3", "0.5f", "__half"]
    with pytest.raises(InvalidDefinitionError, match="constant x=inf"):
        nvrtc.macro("x", float("inf"))


def test_fingerprints_ignore_comments_in_kernels_and_see_code() -> None:
    module = f"SOURCE = r'''{SCALE}'''\n"
    same = module.replace("// y = FACTOR * x", "// anything at all").replace("SOURCE =", "SOURCE  =  ")
    assert normalised_python(same) == normalised_python(module)
    assert normalised_python(module.replace("factor *", "factor -")) != normalised_python(module)
    assert Scale().fingerprint() == Scale().fingerprint() != Commented().fingerprint()


class Commented(Scale):
    """The same with other kernel text."""

    source = SCALE + "\n__device__ int more;\n"


def test_shipped_sources_tell_file_and_line() -> None:
    text = read_source("registry_cuda.kernels", "number.cuh", "elementwise.cu")
    assert text.startswith('#line 1 "number.cuh"')
    assert '#line 1 "elementwise.cu"' in text


def test_unsupported_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(Scale().unsupported(problem(), H200)) == []
    cpu = Device("cpu", 0, "a CPU", "x86_64", 2, 1 << 30, 1 << 20)
    assert "no NVIDIA GPU" in next(iter(Scale().unsupported(problem(), cpu)))
    # what is found once is remembered
    monkeypatch.setattr(nvrtc, "missing", nvrtc.missing.__wrapped__)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert list(Scale().unsupported(problem(), H200)) == [
        "cuda-core is not installed (pip install kernel-registry[cuda])"
    ]


LAUNCH = Launch(
    CudaKernel("", "k"),
    (7, 2),
    ("y", "eps", "x", 5, 2.5, "missing", True, "count", "flag", -(2**40)),
    options={"block": 96},
    cluster=(2,),
    shared_bytes=64,
)
CODES = ("Q", "f", "Q", "q", "f", "Q", "?", "q", "?", "q")
# cuda.core takes a pointer as an int
KINDS: tuple[Any, ...] = (int, ctypes.c_float, int, ctypes.c_longlong, ctypes.c_float, int,
                          ctypes.c_bool, ctypes.c_longlong, ctypes.c_bool, ctypes.c_longlong)  # fmt: skip


class _Enqueued:
    """cuLaunchKernelEx, called through ctypes as the driver's is, that keeps what a launch of LAUNCH hands over."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, bytes, list[Any]]] = []
        self.attributes: list[bytes] = []
        self.status = 0
        self.function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(self._enqueue)

    def _enqueue(self, configuration: int, kernel: int, parameters: int, extra: int | None) -> int:
        places = (ctypes.c_void_p * len(CODES)).from_address(parameters)
        values = [
            struct.unpack(f"<{code}", ctypes.string_at(place, struct.calcsize(f"<{code}")))[0]
            for code, place in zip(CODES, places, strict=True)
        ]
        assert extra is None
        self.seen.append((kernel, ctypes.string_at(configuration, 56), values))
        self.attributes.append(ctypes.string_at(struct.unpack_from("<Q", self.seen[-1][1], 40)[0], 72))
        return self.status


@pytest.fixture
def enqueued(monkeypatch: pytest.MonkeyPatch) -> _Enqueued:
    made = _Enqueued()
    monkeypatch.setattr(cuda_launch, "_enqueue", lambda: made.function)
    monkeypatch.setattr(cuda_launch, "current_device", lambda: 0)
    monkeypatch.setattr(cuda_launch, "current_stream", lambda index: threading.get_native_id())
    return made


def bound(launch: Launch = LAUNCH, misaligned: Any = None) -> Any:
    specs = signature(8, eps=0.0, missing=None, count=0, flag=False)
    kernels = [cuda_launch.Kernel(0xABC0_0000_1234, None)]
    form = cuda_launch.LaunchForm(kernels, [launch], specs, 0, guarded=misaligned is not None)
    return form.run([launch], misaligned)


def test_arguments_are_packed_as_the_kernel_declares_them(enqueued: _Enqueued) -> None:
    y, x = torch.empty(8), torch.empty(8)
    bound()((y,), (x, 0.25, None, 2**40 + 1, True), ())
    ((kernel, configuration, values),) = enqueued.seen
    assert values == [y.data_ptr(), 0.25, x.data_ptr(), 5, 2.5, 0, True, 2**40 + 1, True, -(2**40)]
    assert kernel == 0xABC0_0000_1234
    assert struct.unpack_from("<7I", configuration) == (7, 2, 1, 96, 1, 1, 64)
    assert struct.unpack_from("<Q", configuration, 32) == (threading.get_native_id(),)
    assert struct.unpack_from("<I", configuration, 48) == (1,)
    assert struct.unpack_from("<I4x3I", enqueued.attributes[0]) == (4, 2, 1, 1)


def test_structs_are_those_of_the_drivers_bindings(enqueued: _Enqueued) -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    bound()((torch.empty(8),), (torch.empty(8), 0.0, None, 0, False), ())
    wanted, attribute = driver.CUlaunchConfig(), driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = 2, 1, 1
    wanted.gridDimX, wanted.gridDimY, wanted.gridDimZ = 7, 2, 1
    wanted.blockDimX, wanted.blockDimY, wanted.blockDimZ = 96, 1, 1
    wanted.sharedMemBytes, wanted.hStream = 64, driver.CUstream(threading.get_native_id())
    wanted.attrs, wanted.numAttrs = [attribute], 1
    expected = ctypes.string_at(wanted.getPtr(), 56)
    # but for the address of the attributes, which are compared by themselves, and the padding
    configuration = enqueued.seen[0][1]
    assert [configuration[:28], configuration[32:40], configuration[48:52]] == [
        expected[:28], expected[32:40], expected[48:52]
    ]  # fmt: skip
    assert enqueued.attributes[0][:20] == ctypes.string_at(struct.unpack_from("<Q", expected, 40)[0], 20)


def test_arguments_are_packed_as_cuda_core_packs_them(enqueued: _Enqueued) -> None:
    packing = pytest.importorskip("cuda.core._kernel_arg_handler")
    y, x = torch.empty(8), torch.empty(8)
    bound()((y,), (x, 0.1, None, 3, True), ())
    given = (y.data_ptr(), 0.1, x.data_ptr(), 5, 2.5, 0, True, 3, True, -(2**40))
    holder = packing.ParamHolder([kind(value) for kind, value in zip(KINDS, given, strict=True)])
    places = (ctypes.c_void_p * len(CODES)).from_address(holder.ptr)
    expected = [
        struct.unpack(f"<{code}", ctypes.string_at(place, struct.calcsize(f"<{code}")))[0]
        for code, place in zip(CODES, places, strict=True)
    ]
    assert enqueued.seen[0][2] == expected


def test_threads_do_not_share_arguments(enqueued: _Enqueued) -> None:
    run, start = bound(), threading.Barrier(8)

    def work(number: int) -> bool:
        y, x = torch.empty(8), torch.empty(8)
        start.wait()
        for _ in range(50):
            run((y,), (x, 0.0, None, threading.get_native_id(), False), ())
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert len(enqueued.seen) == 400
    for _, configuration, values in enqueued.seen:
        assert struct.unpack_from("<Q", configuration, 32) == (values[7],)


def test_a_refused_launch_says_so(enqueued: _Enqueued) -> None:
    run = bound()
    enqueued.status = 701
    with pytest.raises(OutOfResourcesError, match="launch of k on cuda:0 failed: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"):
        run((torch.empty(8),), (torch.empty(8), 0.0, None, 0, False), ())


def test_a_plan_launches_in_line_what_its_run_launches(enqueued: _Enqueued) -> None:
    told: list[Any] = []
    run = bound(misaligned=lambda: lambda *given: told.append(given))
    plan = written_call(5, torch.device("cpu"), run, [TensorSpec.contiguous((8,), torch.float32)], [], None)
    x, unaligned = torch.empty(8), torch.empty(9)[1:]
    y = plan(x, 0.25, None, 7, True)
    run((y,), (x, 0.25, None, 7, True), ())
    assert enqueued.seen[0] == enqueued.seen[1]
    y = plan(unaligned, 0.25, None, 7, True)
    assert told[0][0][0] is y
    assert told[0][1][0] is unaligned
    assert len(enqueued.seen) == 2


def test_a_launch_of_no_blocks_is_left_out(enqueued: _Enqueued) -> None:
    run = bound(replace(LAUNCH, grid=(0,), cluster=()))
    run((torch.empty(8),), (torch.empty(8), 0.0, None, 0, False), ())
    assert not enqueued.seen


def test_unknown_and_textual_arguments_are_refused() -> None:
    for args, text in ((("y", "z"), "unknown argument 'z'"), (("y", "mode"), "is a str")):
        launch = Launch(CudaKernel("", "k"), (1,), args, options={"block": 32})
        with pytest.raises(InvalidDefinitionError, match=text):
            Layout([launch], signature(8, mode="tanh"))


class _Driver:
    """The calls of the CUDA driver that a load makes; the only part that this machine lacks."""

    class CUfunction_attribute:  # noqa: N801 - the driver's name
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = "shared"
        CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = "cluster"

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.loads = 0
        self.current = 0

    def CUdevice(self, device: int) -> int:  # noqa: N802 - the driver's name
        return device

    def cuKernelSetAttribute(self, *call: Any) -> tuple[int]:  # noqa: N802 - the driver's name
        self.calls.append(call)
        return (0,)

    def cuKernelGetFunction(self, handle: int) -> tuple[int]:  # noqa: N802 - the driver's name
        return (0,)

    def from_cubin(self, code: bytes) -> _Driver:
        self.loads += 1
        time.sleep(0.02)
        return self

    def get_kernel(self, symbol: str) -> Any:
        return types.SimpleNamespace(handle=0xABC0 + self.loads)

    def device(self, index: int) -> _Driver:
        self.current = index
        return self

    def set_current(self) -> None: ...

    @contextlib.contextmanager
    def guard(self, index: int) -> Iterator[None]:
        before, self.current = self.current, index
        yield
        self.current = before


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> _Driver:
    made = _Driver()
    monkeypatch.setattr(cuda_launch, "_bindings", lambda: made)
    monkeypatch.setattr("cuda.core.ObjectCode", made)
    monkeypatch.setattr("cuda.core.Device", made.device)
    monkeypatch.setattr(torch.cuda, "device", made.guard)
    return made


def test_a_loaded_kernel_stays_and_is_loaded_once(own_cache: Path, driver: _Driver) -> None:
    path = Path(Scale().compile(variant(Scale()), H200.target).path)
    content = path.read_bytes()
    path.unlink()
    assert cuda_launch.load(str(path), 0) is None
    path.write_bytes(content)
    with ThreadPoolExecutor(4) as pool:
        kernels = list(pool.map(lambda _: cuda_launch.load(str(path), 0), range(4)))
    assert kernels[0] is not None
    assert all(kernel is kernels[0] for kernel in kernels)
    assert driver.loads == 1
    # another artifact that is gone is made again, and nothing that is loaded is dropped for it
    other = Scale().compile(variant(Scale(), block=64), H200.target)
    Path(other.path).unlink()
    assert Scale()._load(other, H200).handle != kernels[0].handle
    path.unlink()
    assert cuda_launch.load(str(path), 0) is kernels[0]


def test_a_process_loads_so_many_kernels_and_keeps_those(
    own_cache: Path, driver: _Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (Scale().compile(variant(Scale(), block=block), H200.target).path for block in (32, 64, 128))
    monkeypatch.setattr(cuda_launch, "_LOADED", {})
    monkeypatch.setattr(kernel_limit, "MOST_KERNELS", 2)
    kept = [cuda_launch.load(path, 0) for path in (first, second)]
    with pytest.raises(OutOfResourcesError, match="has loaded 2 CUDA kernels, and keeps them"):
        cuda_launch.load(third, 0)
    assert [cuda_launch.load(path, 0) for path in (first, second)] == kept
    assert driver.loads == 2


def test_a_twin_that_cannot_be_loaded_any_more_says_so(
    own_cache: Path, driver: _Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was launched: an op that mutates is answered by another implementation."""
    launched: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(cuda_launch, "check_arguments", lambda *given: None)
    monkeypatch.setattr(
        cuda_launch.LaunchForm, "run", lambda form, launches, twin: lambda *given: launched.append("unaligned")
    )
    monkeypatch.setattr(cuda_launch, "_enqueue", lambda: None)
    monkeypatch.setattr(cuda_launch, "_LOADED", {})
    monkeypatch.setattr(kernel_limit, "MOST_KERNELS", 1)
    assert cuda_launch.load(Scale().compile(variant(Scale()), H200.target).path, 0)
    twin = Scale()._twin(problem(), {"block": 64}, H200, signature())
    assert twin is not None
    for _ in range(2):
        with pytest.raises(NotLaunchedError, match=r"test\.scale: tensors are not 16-byte aligned.* loaded 1 CUDA"):
            twin((), (), ())
    assert not launched
    monkeypatch.setattr(kernel_limit, "MOST_KERNELS", 2)
    twin((), (), ())
    assert launched == ["unaligned"]


def test_a_twin_whose_kernel_does_not_fit_says_so(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with pytest.raises(NotLaunchedError, match=r"not 16-byte aligned, and .* threads a block"):
        Scale()._misaligned(problem().misaligned(), {"block": 2048}, H200, signature())


def test_a_load_leaves_the_current_gpu_what_it_was(own_cache: Path, driver: _Driver) -> None:
    path = Scale().compile(variant(Scale()), H200.target).path
    assert cuda_launch.load(path, 3) is not None
    assert driver.current == 0


def test_a_limit_that_another_plan_needs_is_not_lowered(driver: _Driver) -> None:
    kernel = cuda_launch.Kernel(0xDEF0, types.SimpleNamespace(handle=0xDEF0))

    def allow(shared: int, device: int = 0) -> None:
        launch = Launch(CudaKernel("", "k"), (1,), (), options={"block": 32}, shared_bytes=shared)
        cuda_launch.allow(kernel, launch, device)

    for shared in (0, 40_000, 200_000, 100_000, 200_000):
        allow(shared)
    allow(100_000, device=1)
    assert driver.calls == [("shared", size, 0xDEF0, device) for size, device in
                            ((40_000, 0), (200_000, 0), (100_000, 1))]  # fmt: skip
