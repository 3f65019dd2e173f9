"""nvmath-python's binding of cuBLASLt, and the library's objects behind it: handles, layouts, attributes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from registry.device import installed_version

LIBRARY = "nvmath-python"
INSTALL_HINT = "pip install 'kernel-registry[cublaslt]'"
CUBLAS = ("nvidia-cublas", "nvidia-cublas-cu12")
"""The distributions that hold the library itself, of CUDA 13 and 12."""


@lru_cache(maxsize=1)
def library_version() -> str:
    """The installed version of nvmath-python; "" where it is not installed. Every new size of an op asks."""
    return installed_version(LIBRARY) if find_spec("nvmath") is not None else ""


@lru_cache(maxsize=1)
def cublas_version() -> tuple[int, ...]:
    """The installed version of cuBLAS, ``(12, 9, 1, 4)``, or () if it is no distribution's."""
    found = next(filter(None, map(installed_version, CUBLAS)), "")
    return tuple(int(part) for part in found.split(".") if part.isdigit())


@cache
def binding() -> Any:
    """The module ``nvmath.bindings.cublasLt``, imported at the first call."""
    return importlib.import_module("nvmath.bindings.cublasLt")


@lru_cache(maxsize=64)
def handle_of(index: int) -> int:
    """The library's handle for device ``index``, which threads may share; it lasts as long as the process."""
    with torch.cuda.device(index):
        return int(binding().create())


class HostNumbers:
    """HostNumbers in host memory at a fixed address, where the library reads them."""

    def __init__(self, values: list[float], dtype: Any) -> None:
        self.array = np.array(values, dtype=dtype)
        self.address = int(self.array.ctypes.data)
        self.nbytes = int(self.array.nbytes)


class LtHandle:
    """An object of the library, which is destroyed with this one."""

    def __init__(self, value: int, destroy: Callable[[int], None]) -> None:
        self.value = int(value)
        self._destroy = destroy

    def __del__(self) -> None:
        self._destroy(self.value)


def matrix_layout(dtype: int, rows: int, columns: int) -> LtHandle:
    """A dense column-major matrix of ``rows`` and ``columns``."""
    lt = binding()
    return LtHandle(lt.matrix_layout_create(int(dtype), rows, columns, rows), lt.matrix_layout_destroy)


def set_operation(operation: LtHandle, name: str, value: int) -> None:
    """Set the attribute ``name`` of an operation, a name of ``cublasLtMatmulDescAttributes_t`` without its prefix."""
    lt = binding()
    attribute = lt.MatmulDescAttribute[name]
    number = HostNumbers([value], lt.get_matmul_desc_attribute_dtype(attribute))
    lt.matmul_desc_set_attribute(operation.value, int(attribute), number.address, number.nbytes)


def set_preference(preference: LtHandle, name: str, value: int) -> None:
    """Set the attribute ``name`` of a preference, of ``cublasLtMatmulPreferenceAttributes_t``."""
    lt = binding()
    attribute = lt.MatmulPreferenceAttribute[name]
    number = HostNumbers([value], lt.get_matmul_preference_attribute_dtype(attribute))
    lt.matmul_preference_set_attribute(preference.value, int(attribute), number.address, number.nbytes)
