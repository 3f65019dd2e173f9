"""Environment variables that compilers obey: what is set of them belongs to the identity of what they compile."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_HOST = (
    "CCC_OVERRIDE_OPTIONS",
    "COMPILER_PATH",
    "CPATH",
    "CPLUS_INCLUDE_PATH",
    "C_INCLUDE_PATH",
    "GCC_EXEC_PREFIX",
)
"""Without ``LIBRARY_PATH``, which NVIDIA's images set: the linker alone reads it, for the compiler's own runtime."""
_NVCC = ("NVCC_APPEND_FLAGS", "NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "PYTORCH_NVCC")
_TRITON = (
    "PTXAS_OPTIONS",
    "TRITON_INSTRUMENTATION_MODE",
    "TRITON_KERNEL_OVERRIDE",
    "TRITON_LIBDEVICE_PATH",
    "TRITON_PTXAS_PATH",
)
_ASSEMBLER = "TRITON_PTXAS_PATH"
_TRITON_PREFIXES = ("AMDGCN_", "DISABLE_", "LLVM_", "MLIR_", "PTXAS_", "TRITON_")
_TRITON_DEBUGGING = frozenset({"TRITON_DISABLE_LINE_INFO", "TRITON_ENABLE_LLVM_DEBUG"})
_INDUCTOR = "TORCHINDUCTOR_"
_INDUCTOR_ELSEWHERE = re.compile("CACHE|COMPILE_THREADS|WORKER|PROFIL|LOG|TIMEOUT|VEC_ISA_OK|DEBUG|METRIC")
"""What tells Inductor where to cache, how to compile in parallel and what to print, and so changes no code."""


def host_compiler() -> Mapping[str, str]:
    """What a C++ compiler obeys: where it looks for headers, libraries and its own parts, and arguments in ``CXX``.

    Which compiler it is counts by its version elsewhere.
    """
    arguments = shlex.join(shlex.split(os.environ.get("CXX", ""))[1:])
    return {**_set(_HOST), **({"CXX": arguments} if arguments else {})}


def nvcc() -> Mapping[str, str]:
    """What nvcc and its host compiler obey."""
    return {**host_compiler(), **_set(_NVCC)}


def triton() -> Mapping[str, str]:
    """What Triton says would change what it compiles, and what it hands on to ptxas."""
    if not any(name.startswith(_TRITON_PREFIXES) for name in os.environ):
        return {}  # it takes 0.3 s to import, which a process that runs on CPUs can do without
    try:
        from .triton.stored import variables_obeyed
    except ImportError:
        return _set(_TRITON)
    found = {**_set(_TRITON), **variables_obeyed()}
    if _is_torchs(found.get(_ASSEMBLER, "")):
        del found[_ASSEMBLER]
    return {name: value for name, value in found.items() if name not in _TRITON_DEBUGGING}


@contextlib.contextmanager
def tritons_own_assembler() -> Iterator[None]:
    """Kernels compiled inside are assembled by the ptxas that Triton brings, or by one that the user has named.

    With its first kernel, Inductor names torch's ptxas to all of the process, by an environment variable. A kernel that
    was measured before is to be the same code after, in this process and in those that it starts. One thread at a time
    may be inside.
    """
    named = os.environ.get(_ASSEMBLER, "")
    if not _is_torchs(named):
        yield
        return
    del os.environ[_ASSEMBLER]
    try:
        yield
    finally:
        os.environ[_ASSEMBLER] = named


def inductor() -> Mapping[str, str]:
    """Inductor's own options, and what the compilers obey that it calls."""
    own = [name for name in os.environ if name.startswith(_INDUCTOR) and not _INDUCTOR_ELSEWHERE.search(name)]
    return {**host_compiler(), **triton(), **_set(own)}


def _is_torchs(assembler: str) -> bool:
    return assembler != "" and assembler == _torchs_assembler()


@cache
def _torchs_assembler() -> str:
    """Where Inductor looks for torch's own ptxas."""
    torch = find_spec("torch")
    return str(Path(torch.origin).absolute().parent / "bin" / "ptxas") if torch and torch.origin else ""


def _set(names: Iterable[str]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if os.environ.get(name)}
