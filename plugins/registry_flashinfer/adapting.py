"""FlashInfer's functions as implementations, and the reasons why one cannot run."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import torch

import registry
from registry import Device, Implementation, Problem
from registry.device import installed_version

LIBRARY = "flashinfer-python"
HALVES = ("bfloat16", "float16")

_OLDEST = (7, 5)
"""The first compute capability that its kernels are written for."""

_WORKSPACE = 128 << 20
"""Bytes of a workspace: what the library recommends."""

FlashInferReasons = Callable[[Problem, Device], Iterator[str]]


def flashinfer(
    name: str,
    op: str,
    function: Callable[..., Any],
    unsupported: FlashInferReasons,
    *,
    into: bool = False,
    any_size: bool = True,
    capturable: bool = True,
) -> Implementation:
    """``function`` as the implementation ``flashinfer.<name>`` of ``op``."""
    return registry.implementation_of(
        op,
        f"flashinfer.{name}",
        function,
        library=LIBRARY,
        any_size=any_size,
        into=into,
        unsupported=unsupported,
        device_types=("cuda",),
        capturable=capturable,
        preference=-10.0,  # not before it was measured: a first call may compile for minutes
    )


class WithPrepared(Implementation):
    """A function of FlashInfer that takes a weight in float32: it is converted once, not at each call."""

    device_types: ClassVar[frozenset[str]] = frozenset({"cuda"})
    any_size = True

    def preference(self, problem: Problem, device: Device) -> float:
        return -10.0

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        if not installed_version(LIBRARY):
            yield f"{LIBRARY} is not installed (pip install {LIBRARY})"
        else:
            yield from self.reasons(problem, device)

    def reasons(self, problem: Problem, device: Device) -> Iterator[str]:
        """Why the installed library cannot run a problem."""
        yield from ()

    def sources(self) -> Iterator[ModuleType | str]:
        yield f"{LIBRARY} {installed_version(LIBRARY)}"
        yield from super().sources()


def general_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why FlashInfer cannot take a problem's device, dtype or tensors."""
    if not device.architecture.startswith("sm_"):
        yield f"it is written for NVIDIA's GPUs, this is {device.architecture}"
    elif device.capability < _OLDEST:
        yield f"it needs compute capability 7.5, this is {device.architecture}"
    if problem.dtype not in HALVES:
        yield f"dtype is {problem.dtype}, expected {' or '.join(HALVES)}"
    if not problem.traits["contiguous"] or not problem.traits["aligned"]:
        yield "tensors are not contiguous, or do not begin at a multiple of 16 bytes"


def compiled_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Reasons of ``general_reasons``, and a missing compiler of kernels that are not compiled yet."""
    yield from general_reasons(problem, device)
    if not _has_kernels():
        yield "its kernels are compiled by nvcc, which is not found, and flashinfer-jit-cache is not installed"


def norm_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Reasons of ``general_reasons``, and a missing compiler of norms: NVIDIA's CuTe DSL or nvcc."""
    yield from general_reasons(problem, device)
    if not installed_version("nvidia-cutlass-dsl") and not _has_kernels():
        yield "its norms are compiled by nvidia-cutlass-dsl or nvcc, and neither is found"


@lru_cache(maxsize=1)
def _has_kernels() -> bool:
    """Whether its CUDA kernels are installed, or a compiler for them where the library looks for one."""
    roots = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ] + ["/usr/local/cuda"]
    return (
        find_spec("flashinfer_jit_cache") is not None
        or shutil.which("nvcc") is not None
        or any((Path(root) / "bin" / "nvcc").exists() for root in roots)
    )


def stream_of(device: torch.device) -> int:
    """The current stream of a GPU as a number; 0 for another device."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


@lru_cache(maxsize=4)
def workspace(device: torch.device, _stream: int) -> torch.Tensor:
    """Memory for what a call leaves between its kernels: calls on one stream, which wait for each other, share it."""
    return torch.empty(_WORKSPACE, dtype=torch.uint8, device=device)


@cache
def library() -> Any:
    """The module ``flashinfer``."""
    return importlib.import_module("flashinfer")
