"""Backends: base classes for implementations that compile, fingerprint and launch; see docs/writing-a-plugin.md.

Each name below is imported at its first use: a program that does not use a backend does not load its compiler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cpp.implementation import CppImplementation, CppKernel
    from .cuda.implementation import CudaImplementation, CudaKernel, read_source
    from .cuda.inline import InlineImplementation, load_inline
    from .inductor.implementation import InductorImplementation
    from .triton.implementation import TritonImplementation

_HOMES = {
    "CppImplementation": "cpp",
    "CppKernel": "cpp",
    "CudaImplementation": "cuda",
    "CudaKernel": "cuda",
    "read_source": "cuda",
    "InductorImplementation": "inductor",
    "InlineImplementation": "cuda.inline",
    "load_inline": "cuda.inline",
    "TritonImplementation": "triton",
}

__all__ = [
    "CppImplementation",
    "CppKernel",
    "CudaImplementation",
    "CudaKernel",
    "InductorImplementation",
    "InlineImplementation",
    "TritonImplementation",
    "load_inline",
    "read_source",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
