"""Triton's compiled kernels as files: where one was put, and a kernel made of it without asking the compiler.

``triton.compile`` finds in its cache what it compiled before, but takes milliseconds to know that it is the same: it
hashes the source, and reads every stage of the compilation. All here is private to Triton; where it is not as expected
the callers go on with ``triton.compile``.
"""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from triton.compiler import CompiledKernel

_BINARIES = (".cubin", ".hsaco")
_EXPECTED = {"hash", "name", "target", "shared", "num_warps"}


def path_of(kernel: Any) -> str:
    """The file that describes a compiled kernel, "" where Triton does not tell; its binary lies beside it."""
    group = getattr(kernel, "metadata_group", None)
    paths = [str(path) for name, path in group.items() if name.endswith(".json")] if isinstance(group, dict) else []
    return paths[0] if len(paths) == 1 and _binary_beside(Path(paths[0])) else ""


def kernel_from(path: str, source: Any) -> Any | None:
    """The kernel that ``path_of`` told of, as ``triton.compile`` returns it for ``source`` (its texts left out); None
    when it is not there, or not as expected."""
    description = Path(path)
    try:
        binary = _binary_beside(description)
        if binary is None or _EXPECTED - json.loads(description.read_text()).keys():
            return None
        kernel: Any = CompiledKernel(source, {description.name: path, binary.name: str(binary)}, "")
        kernel.hash = kernel.metadata.hash
    except Exception:  # whatever a Triton of other habits raises
        return None
    return kernel


def variables_obeyed() -> dict[str, str]:
    """Environment variables that are set and by which Triton would compile anew; none where it does not tell."""
    try:
        found: dict[str, str] = dict(importlib.import_module("triton._C.libtriton").get_cache_invalidating_env_vars())
    except (ImportError, AttributeError):
        return {}
    return found


def build_launcher(kernel: Any) -> None:
    """Have Triton build the host code that launches a kernel of this signature: a C compiler's work in 3.6.

    Its result is cached on disk, so that a process which measures finds it there. Does nothing without a GPU.
    """
    _build(lambda driver: driver.CudaLauncher(kernel.src, kernel.metadata))


def build_utilities() -> None:
    """Have Triton build the host code that loads kernels, as ``build_launcher`` does that which launches them."""
    _build(lambda driver: driver.CudaUtils())


def _build(make: Callable[[Any], object]) -> None:
    if torch.cuda.device_count() > 0:
        with contextlib.suppress(Exception):  # loading a kernel builds it otherwise
            make(importlib.import_module("triton.backends.nvidia.driver"))


def _binary_beside(description: Path) -> Path | None:
    stem = description.with_suffix("")
    found = [stem.with_name(stem.name + suffix) for suffix in _BINARIES]
    return next((path for path in found if path.is_file()), None)
