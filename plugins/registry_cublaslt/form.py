"""A product in cuBLASLt's terms: types, epilogue and scales; and the reasons why it cannot run one.

The library's matrices are column-major. The weight ``[n, k]`` is its transposed first operand, the activations
``[m, k]`` its second one, and the result ``[m, n]`` its result of n rows and m columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from registry import Device, Problem

from .library import CUBLAS, INSTALL_HINT, LIBRARY, cublas_version, library_version


class DataType(IntEnum):
    """CUDA's numbers of data types, ``cudaDataType``."""

    FLOAT32 = 0
    FLOAT16 = 2
    INT8 = 3
    INT32 = 10
    BFLOAT16 = 14
    FLOAT8_E4M3FN = 28


class ScaleMode(IntEnum):
    """cuBLASLt's numbers of kinds of scales, ``cublasLtMatmulMatrixScale_t``."""

    TENSOR = 0
    ROW = 3
    ROW_BLOCKS = 4
    SQUARE_BLOCKS = 5


COMPUTE_FLOAT32 = 68
COMPUTE_INT32 = 72
"""Numbers of ``cublasComputeType_t``: the type of the sums. float32 operands are never rounded to TF32."""

BLOCK = 128
_DTYPES = ("bfloat16", "float16", "float32")
_FIRST_WITH_ROW_SCALES = (12, 9)
_SCALES = {
    "tensor": (ScaleMode.TENSOR, ScaleMode.TENSOR),
    "row": (ScaleMode.ROW, ScaleMode.ROW),
    "block": (ScaleMode.SQUARE_BLOCKS, ScaleMode.ROW_BLOCKS),
}


class MatmulForm(NamedTuple):
    """A product as plain numbers; equal for problems that can share a plan.

    operand, result   types of both operands and of the result
    compute   type of the sums; the factor before the product, 1, is of ``scale_type``
    bias      whether a bias of the result's type is added
    scales    kinds of the weight's and the activations' scales; None without scales
    """

    m: int
    n: int
    k: int
    operand: DataType
    result: DataType
    compute: int
    scale_type: DataType
    bias: bool
    scales: tuple[ScaleMode, ScaleMode] | None

    @classmethod
    def of(cls, problem: Problem) -> MatmulForm:
        """The form of a problem of linear or scaled_mm; of int8 the form of the product in int32 alone."""
        m, n, k = int(problem.m), int(problem.n), int(problem.k)
        operand = DataType[str(problem.dtype).upper()]
        if operand is DataType.INT8:
            return cls(m, n, k, operand, DataType.INT32, COMPUTE_INT32, DataType.INT32, False, None)
        scales = _SCALES[problem.scales] if problem.op == "scaled_mm" else None
        result = operand if scales is None else DataType[str(problem.out_dtype).upper()]
        return cls(m, n, k, operand, result, COMPUTE_FLOAT32, DataType.FLOAT32, bool(problem.bias), scales)


def common_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why no product of cuBLASLt can run on a device: a missing library, another vendor's GPU, the tensors' layout."""
    if not library_version():
        yield f"{LIBRARY} is not installed ({INSTALL_HINT})"
    elif not cublas_version():
        yield f"none of {', '.join(CUBLAS)} is installed, which torch for NVIDIA's GPUs brings"
    if device.warp_size != 32 or not device.architecture.startswith("sm_"):
        yield f"it is written for NVIDIA's GPUs, this is {device.architecture}"
    elif device.capability < (8, 0):
        yield f"it needs compute capability 8.0, this is {device.architecture}"
    if not problem.traits["contiguous"]:
        yield "tensors are not contiguous"
    if not problem.traits["aligned"]:
        yield "its algorithms are chosen for tensors that are aligned to 16 bytes, and one is not"
    if not (problem.m and problem.n and problem.k):
        yield "there is nothing to multiply"


def linear_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Reasons why cuBLASLt cannot run a problem of linear."""
    yield from common_reasons(problem, device)
    if problem.dtype not in _DTYPES:
        yield f"dtype is {problem.dtype}, expected {', '.join(_DTYPES)}"


def float8_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Reasons why cuBLASLt cannot run a problem of scaled_mm as float8."""
    yield from common_reasons(problem, device)
    if problem.dtype != "float8_e4m3fn":
        yield f"dtype is {problem.dtype}, expected float8_e4m3fn"
        return
    if device.capability < (8, 9):
        yield f"float8_e4m3fn on {device.architecture} (compute capability 8.9 has it)"
    if problem.n % 16 or problem.k % 16:
        yield f"n={problem.n} and k={problem.k} must be multiples of 16"
    if problem.bias and problem.out_dtype == "float32":
        yield "a bias beside an output in float32"
    if problem.scales == "tensor":
        return
    if device.capability != (9, 0):
        yield f"scales of rows or blocks on {device.architecture} (supported: compute capability 9.0)"
    if problem.out_dtype != "bfloat16":
        yield f"an output in {problem.out_dtype} beside scales of rows or blocks (supported: bfloat16)"
    if cublas_version() and cublas_version() < _FIRST_WITH_ROW_SCALES:
        shown = ".".join(map(str, cublas_version()))
        yield f"scales of rows or blocks with cuBLAS {shown} (supported from 12.9 on)"
    if problem.scales == "block" and (problem.n % BLOCK or problem.k % (4 * BLOCK) or problem.m % 4 or problem.bias):
        yield "blocks need n a multiple of 128, k of 512 and m of 4, and no bias"


def int8_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Reasons why cuBLASLt cannot run a problem of scaled_mm as int8."""
    yield from common_reasons(problem, device)
    if problem.dtype != "int8":
        yield f"dtype is {problem.dtype}, expected int8"
        return
    if problem.scales == "block":
        yield "scales of blocks lie inside the sum"
    if problem.m <= 16 or problem.n % 8 or problem.k % 16:
        yield f"m={problem.m}, n={problem.n}, k={problem.k}: needs m above 16, n a multiple of 8, k of 16"
