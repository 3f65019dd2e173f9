"""registry_cublaslt without a GPU: its forms and reasons, and what it tells and asks a library that only records it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
import torch

import registry_cublaslt
from registry import Device, Problem, UnsupportedError
from registry.contracts import BOX
from registry.problem import Value
from registry_cublaslt import form, library, plans
from registry_cublaslt.form import DataType, MatmulForm, ScaleMode
from registry_cublaslt.products import LtFloat8, LtInt8, LtLinear, finished

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20)
OPS = {op.name: op for op in BOX}
ALGORITHM = np.dtype([("data_", "<u8", (8,))])
RESULT = np.dtype([("algo", ALGORITHM), ("workspace_size", "<u8"), ("state", "<i4")])


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form, "library_version", lambda: "1.0.0")
    monkeypatch.setattr(form, "cublas_version", lambda: (12, 9, 1, 4))


def linear(**dims: Value) -> Problem:
    return OPS["linear"].problem_of({"m": 64, "n": 4096, "k": 4096, "dtype": "bfloat16", "bias": False, **dims})


def scaled(**dims: Value) -> Problem:
    given: dict[str, Value] = {"m": 64, "n": 4096, "k": 4096, "dtype": "float8_e4m3fn", "out_dtype": "bfloat16"}
    return OPS["scaled_mm"].problem_of({**given, "scales": "row", "bias": False, **dims})


def test_hooks_bring_the_implementations() -> None:
    made = [*registry_cublaslt.linear_implementations(), *registry_cublaslt.scaled_mm_implementations()]
    assert [(one.op, one.name) for one in made] == [
        ("linear", "cublaslt.matmul"), ("scaled_mm", "cublaslt.fp8"), ("scaled_mm", "cublaslt.int8"),
    ]  # fmt: skip
    assert all(
        problem in one.space(problem, H200) for one in made for problem in ({"algorithm": 11, "workspace_mib": 32},)
    )


@pytest.mark.parametrize("bias", [False, True])
def test_a_models_problems_have_no_reason(bias: bool) -> None:
    for dtype in ("bfloat16", "float16", "float32"):
        assert not [*LtLinear().unsupported(linear(dtype=dtype, bias=bias, n=50257), H200)]
    for scales in ("tensor", "row"):
        assert not [*LtFloat8().unsupported(scaled(scales=scales, bias=bias), H200)]
        assert not [*LtInt8().unsupported(scaled(scales=scales, bias=bias, dtype="int8"), H200)]
    assert not [*LtFloat8().unsupported(scaled(scales="block"), H200)]


@pytest.mark.parametrize(
    ("dims", "told"),
    [
        ({"n": 4100}, "must be multiples of 16"),
        ({"bias": True, "out_dtype": "float32", "scales": "tensor"}, "a bias beside an output in float32"),
        ({"out_dtype": "float16"}, "an output in float16 beside scales of rows"),
        ({"scales": "block", "k": 4096 + 128}, "blocks need"),
        ({"dtype": "int8"}, "expected float8_e4m3fn"),
    ],
)
def test_what_float8_cannot_be_is_told(dims: dict[str, Value], told: str) -> None:
    assert [told in one for one in LtFloat8().unsupported(scaled(**dims), H200)] == [True]


def test_what_int8_cannot_be_is_told() -> None:
    assert ["inside the sum" in one for one in LtInt8().unsupported(scaled(dtype="int8", scales="block"), H200)] == [
        True
    ]
    assert ["m above 16" in one for one in LtInt8().unsupported(scaled(dtype="int8", m=16), H200)] == [True]


def test_older_libraries_and_gpus_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ada, turing = Device.without_hardware("sm_89"), Device.without_hardware("sm_75")
    assert ["supported: compute capability 9.0" in one for one in LtFloat8().unsupported(scaled(), ada)] == [True]
    assert not [*LtFloat8().unsupported(scaled(scales="tensor"), ada)]
    assert ["compute capability 8.0" in one for one in LtLinear().unsupported(linear(dtype="float16"), turing)] == [
        True
    ]
    amd = Device.without_hardware("gfx942")
    assert ["NVIDIA" in one for one in LtLinear().unsupported(linear(), amd)] == [True]
    monkeypatch.setattr(form, "cublas_version", lambda: (12, 8, 4, 1))
    assert ["with cuBLAS 12.8.4.1" in one for one in LtFloat8().unsupported(scaled(), H200)] == [True]
    monkeypatch.setattr(form, "library_version", lambda: "")
    assert "nvmath-python is not installed (pip install 'kernel-registry[cublaslt]')" in [
        *LtLinear().unsupported(linear(), H200)
    ]


def test_forms_are_the_librarys_numbers() -> None:
    assert MatmulForm.of(linear(bias=True)) == (64, 4096, 4096, 14, 14, 68, 0, True, None)
    assert MatmulForm.of(linear(dtype="float32")).compute == form.COMPUTE_FLOAT32
    assert MatmulForm.of(scaled(scales="block")).scales == (ScaleMode.SQUARE_BLOCKS, ScaleMode.ROW_BLOCKS)
    assert MatmulForm.of(scaled(out_dtype="float32", scales="tensor")).result is DataType.FLOAT32
    # scales and bias follow the product in int32
    assert MatmulForm.of(scaled(dtype="int8", bias=True)) == (64, 4096, 4096, 3, 10, 72, 10, False, None)


def test_scratch_is_the_workspace_and_what_the_product_needs_beside_it() -> None:
    without, with_it = {"algorithm": 0, "workspace_mib": 0}, {"algorithm": 0, "workspace_mib": 32}
    assert not LtLinear().scratch(linear(), without, H200)
    assert LtLinear().scratch(linear(), with_it, H200)["workspace"].shape == (32 << 20,)
    assert [*LtFloat8().scratch(scaled(scales="block"), with_it, H200)] == ["workspace", "columns"]
    assert [*LtInt8().scratch(scaled(dtype="int8"), without, H200)] == ["sums", "scaled"]


@pytest.mark.parametrize("kind", ["tensor", "row"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("bias", [False, True])
def test_the_passes_after_an_int8_product_are_the_ops(kind: str, dtype: str, bias: bool) -> None:
    problem = scaled(m=17, n=24, k=48, dtype="int8", scales=kind, out_dtype=dtype, bias=bias)
    values = OPS["scaled_mm"].inputs(problem, "outliers", torch.Generator().manual_seed(1))
    a, b, scale_a, scale_b, added, _ = values
    y = torch.empty((17, 24), dtype=getattr(torch, dtype))
    finished((a.int() @ b.int().t()).int(), torch.empty(17, 24), scale_a, scale_b, added, y)
    torch.testing.assert_close(
        y, OPS["scaled_mm"].reference(*values), rtol=2e-2 if dtype != "float32" else 1e-6, atol=1e-5
    )


# what the library is told


class Attribute(IntEnum):
    """Attributes of operations and preferences, with numbers of their own."""

    TRANSA = 1
    EPILOGUE = 2
    BIAS_DATA_TYPE = 3
    BIAS_POINTER = 4
    A_SCALE_MODE = 5
    B_SCALE_MODE = 6
    A_SCALE_POINTER = 7
    B_SCALE_POINTER = 8
    MAX_WORKSPACE_BYTES = 9
    MIN_ALIGNMENT_A_BYTES = 10
    MIN_ALIGNMENT_B_BYTES = 11
    MIN_ALIGNMENT_C_BYTES = 12
    MIN_ALIGNMENT_D_BYTES = 13


class Recorder:
    """The binding's functions that the plugin calls: they record, since the library needs a GPU."""

    MatmulDescAttribute = MatmulPreferenceAttribute = Attribute
    matmul_heuristic_result_dtype = RESULT
    cuBLASLtError = RuntimeError  # noqa: N815  (the library's name)

    def __init__(self) -> None:
        self.made: list[tuple[Any, ...]] = []
        self.alive: set[int] = set()
        self.attributes: dict[int, dict[str, int]] = {}
        self.calls: list[tuple[int, ...]] = []
        self.workspaces = [0, 1 << 20, 0, 4 << 20]

    def _create(self, *described: int) -> int:
        self.made.append(described)
        self.alive.add(len(self.made))
        self.attributes[len(self.made)] = {}
        return len(self.made)

    def _destroy(self, handle: int) -> None:
        self.alive.remove(handle)

    matmul_desc_create = matrix_layout_create = matmul_preference_create = _create
    matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy = _destroy

    def get_matmul_desc_attribute_dtype(self, attribute: Attribute) -> Any:
        return np.int64 if attribute.name.endswith("POINTER") else np.int32

    def get_matmul_preference_attribute_dtype(self, attribute: Attribute) -> Any:
        return np.uint64 if attribute is Attribute.MAX_WORKSPACE_BYTES else np.uint32

    def _set(self, handle: int, attribute: int, address: int, size: int) -> None:
        self.attributes[handle][Attribute(attribute).name] = int.from_bytes(_read(address, size), "little")

    matmul_desc_set_attribute = matmul_preference_set_attribute = _set

    def matmul_algo_get_heuristic(self, *given: int) -> None:
        *_, preference, asked, results, count = given
        most = self.attributes[preference]["MAX_WORKSPACE_BYTES"]
        fitting = [size for size in self.workspaces if size <= most][:asked]
        made = np.zeros(len(fitting), dtype=RESULT)
        made["workspace_size"], made["algo"]["data_"][:, 0] = fitting, 7 + np.arange(len(fitting))
        _write(results, made.tobytes())
        _write(count, len(fitting).to_bytes(4, "little"))

    def matmul(self, *given: int) -> None:
        self.calls.append(given)


def _read(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)


def _write(address: int, data: bytes) -> None:
    ctypes.memmove(address, data, len(data))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    made = Recorder()
    monkeypatch.setattr(library, "binding", lambda: made)
    monkeypatch.setattr(library, "handle_of", lambda index: 99)
    monkeypatch.setattr(plans, "current_stream", lambda index: 55)
    plans.algorithms.cache_clear()
    yield made
    plans.algorithms.cache_clear()


def test_an_operation_tells_transposition_bias_and_scales(recorder: Recorder) -> None:
    made = plans.LtOperation(MatmulForm.of(scaled(bias=True)))
    told = recorder.attributes[made.value]
    assert recorder.made[made.value - 1] == (68, 0)
    assert {name: told[name] for name in told if not name.endswith("POINTER")} == {
        "TRANSA": 1, "EPILOGUE": 4, "BIAS_DATA_TYPE": 14, "A_SCALE_MODE": 3, "B_SCALE_MODE": 3,
    }  # fmt: skip
    assert all(told[name] % plans.ALIGNMENT == 0 < told[name] for name in told if name.endswith("POINTER"))
    plain = plans.LtOperation(MatmulForm.of(linear()))
    assert recorder.attributes[plain.value] == {"TRANSA": 1}


def test_layouts_are_column_major_and_objects_are_destroyed(recorder: Recorder) -> None:
    made = plans.LtLayouts(MatmulForm.of(linear(m=3, n=5, k=7)))
    assert recorder.made == [(14, 7, 5, 7), (14, 7, 3, 7), (14, 5, 3, 5)]
    del made
    assert not recorder.alive


def test_algorithms_with_and_without_workspace_are_two_lists(recorder: Recorder) -> None:
    product = MatmulForm.of(linear())
    without, with_it = (plans.algorithms(product, size, 0) for size in (0, 32 << 20))
    assert [int(one.data.array["data_"][0, 0]) for one in without] == [7, 8]
    assert [int(one.data.array["data_"][0, 0]) for one in with_it] == [8, 10]
    assert [one.workspace for one in with_it] == [1 << 20, 4 << 20]
    with pytest.raises(UnsupportedError, match="names 2 algorithms without workspace for this product, not 3"):
        plans.chosen(product, 2, 0, 0)


def test_a_launch_is_one_call_with_a_threads_own_pointers(recorder: Recorder) -> None:
    product = MatmulForm.of(scaled())
    launch = plans.launcher(product, plans.chosen(product, 1, 32 << 20, 0), 32 << 20, 0)
    launch(16, 32, 48, (64, 80), 96)
    launch(16, 32, 48, (64, 112), 96)
    (first, second) = recorder.calls
    handle, operation, _, weight, _, activations, _, _, source, _, result, *_ = first
    assert (handle, weight, activations, source, result) == (99, 16, 32, 48, 48)
    assert first[-3:] == (96, 32 << 20, 55)
    assert first == second
    assert (recorder.attributes[operation]["A_SCALE_POINTER"], recorder.attributes[operation]["B_SCALE_POINTER"]) == (
        64,
        112,
    )
    other = threading.Thread(target=launch, args=(16, 32, 48, (128, 144), 96))
    other.start()
    other.join()
    assert recorder.calls[2][1] != operation
    assert recorder.attributes[operation]["A_SCALE_POINTER"] == 64
