"""Bases of this plugin's kernels: element types, layouts, thread counts, their text."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from registry.backends.cpp import CppImplementation, CppKernel
from registry.device import Device
from registry.problem import Problem

ELEMENT_TYPES = {"float32": "float", "float16": "float16", "bfloat16": "bfloat16"}

_FOLDER = Path(__file__).parent / "kernels"


def kernel(name: str, *files: str) -> CppKernel:
    """The function ``name`` of this plugin's files, after the vector type that all of them use."""
    return CppKernel.read(name, *(_FOLDER / file for file in ("simd.hpp", *files)))


def panel_kernel(name: str, *files: str) -> CppKernel:
    """The function ``name`` of files that read a weight in panels of 16 columns, each a vector."""
    return CppKernel.read(name, *(_FOLDER / file for file in ("panel_columns.hpp", "simd.hpp", "panels.hpp", *files)))


@lru_cache(maxsize=8)
def thread_counts(device: Device) -> tuple[int, ...]:
    """One, a quarter, a half and all of the usable cores: memory may be busy long before the last core is."""
    cores = max(1, device.multiprocessors)
    return tuple(sorted({1, max(1, cores // 4), max(1, cores // 2), cores}))


class DenseImplementation(CppImplementation):
    """Reads and writes row-major tensors of float32, float16 or bfloat16, at any alignment."""

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if problem.dtype not in ELEMENT_TYPES:
            yield f"{problem.dtype} is none of {', '.join(ELEMENT_TYPES)}"
        if not problem.traits["contiguous"]:
            yield "a tensor is not row-major"
