"""Triton's compiled kernels as files: their paths, and loading a kernel from its files without the compiler.

``triton.compile`` finds a compiled kernel in its cache, but takes milliseconds to do so: it hashes the source, and
reads every stage of the compilation. This module uses private parts of Triton; if they are not as expected, the callers
use ``triton.compile``.
"""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from triton.compiler import CompiledKernel

from ...device import may_use_nvidia

_BINARIES = (".cubin", ".hsaco")
_EXPECTED = {"hash", "name", "target", "shared", "num_warps"}


def path_of(kernel: Any) -> str:
    """The path of the file that describes a compiled kernel, with its binary in the same folder; "" if unknown."""
    group = getattr(kernel, "metadata_group", None)
    paths = [str(path) for name, path in group.items() if name.endswith(".json")] if isinstance(group, dict) else []
    return paths[0] if len(paths) == 1 and _binary_beside(Path(paths[0])) else ""


def kernel_from(path: str, source: Any) -> Any | None:
    """The kernel at ``path`` (see ``path_of``), as ``triton.compile`` returns it for ``source`` but without its texts;
    None if it is missing or not as expected."""
    description = Path(path)
    try:
        binary = _binary_beside(description)
        if binary is None or _EXPECTED - json.loads(description.read_text()).keys():
            return None
        kernel: Any = CompiledKernel(source, {description.name: path, binary.name: str(binary)}, "")
        kernel.hash = kernel.metadata.hash
    except Exception:  # another version of Triton may raise anything
        return None
    return kernel


def variables_obeyed() -> dict[str, str]:
    """The environment variables that are set and make Triton compile again; none if Triton does not list them."""
    try:
        found: dict[str, str] = dict(importlib.import_module("triton._C.libtriton").get_cache_invalidating_env_vars())
    except (ImportError, AttributeError):
        return {}
    return found


def build_launcher(kernel: Any) -> None:
    """Make Triton build the host code that launches a kernel of this signature, in 3.6 with a C compiler.

    The result is cached on disk, for the process that measures. Does nothing without a GPU.
    """
    _build(lambda driver: driver.CudaLauncher(kernel.src, kernel.metadata))


def build_utilities() -> None:
    """Make Triton build the host code that loads kernels, which its cache on disk keeps. Does nothing without a GPU."""
    _build(lambda driver: driver.CudaUtils())


def _build(make: Callable[[Any], object]) -> None:
    if may_use_nvidia():
        with contextlib.suppress(Exception):  # a failure is harmless: loading a kernel builds it again
            make(importlib.import_module("triton.backends.nvidia.driver"))


def _binary_beside(description: Path) -> Path | None:
    stem = description.with_suffix("")
    found = [stem.with_name(stem.name + suffix) for suffix in _BINARIES]
    return next((path for path in found if path.is_file()), None)
