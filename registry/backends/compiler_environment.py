"""Environment variables that compilers obey: those that are set are part of the identity of compiled code."""

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
"""Not ``LIBRARY_PATH``, which NVIDIA's images set: only the linker reads it, for the compiler's own runtime."""
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
"""Inductor's variables for caching, parallel compilation and printing, which do not change compiled code."""
_ADDRESSED = re.compile(
    rf"(?:{'|'.join((*_HOST, *_NVCC, 'CC', 'CXX'))})\Z|AMDGCN_|LLVM_|MLIR_|PTXAS_|TRITON_|{_INDUCTOR}"
).match


def host_compiler() -> Mapping[str, str]:
    """Variables that a C++ compiler obeys: search paths for headers, libraries and its own parts; arguments in ``CXX``.

    The compiler's name is not among them: its version is part of an identity elsewhere.
    """
    arguments = shlex.join(shlex.split(os.environ.get("CXX", ""))[1:])
    return {**_set(_HOST), **({"CXX": arguments} if arguments else {})}


def nvcc() -> Mapping[str, str]:
    """Variables that nvcc and its host compiler obey."""
    return {**host_compiler(), **_set(_NVCC)}


def triton() -> Mapping[str, str]:
    """Variables that change what Triton compiles, by its own account, and those that it passes to ptxas."""
    if not any(name.startswith(_TRITON_PREFIXES) for name in os.environ):
        return {}  # without importing Triton, which takes 0.3 s
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
    """A context in which Triton assembles kernels with its own ptxas, or with one that the user has set.

    Inductor sets an environment variable to torch's ptxas when it compiles its first kernel. Without this context a
    kernel compiled afterwards, here or in a child process, would be other code than the one measured before. One
    thread at a time may be inside.
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
    """Variables that Inductor and the compilers it calls obey."""
    own = [name for name in os.environ if name.startswith(_INDUCTOR) and not _INDUCTOR_ELSEWHERE.search(name)]
    return {**host_compiler(), **triton(), **_set(own)}


def told_to_compilers() -> Mapping[str, str]:
    """Variables by which a process tells any compiler something, found by their names alone, without torch's own.

    These are more than an identity holds, since nobody asks Triton which of them it obeys. Those that name caches, or
    that print, are not among them.
    """
    found = {
        name: value for name, value in os.environ.items() if _ADDRESSED(name) and not _INDUCTOR_ELSEWHERE.search(name)
    }
    if _is_torchs(found.get(_ASSEMBLER, "")):
        del found[_ASSEMBLER]
    return found


def _is_torchs(assembler: str) -> bool:
    return assembler != "" and assembler == _torchs_assembler()


@cache
def _torchs_assembler() -> str:
    """The path at which Inductor looks for torch's own ptxas; "" without torch."""
    torch = find_spec("torch")
    return str(Path(torch.origin).absolute().parent / "bin" / "ptxas") if torch and torch.origin else ""


def _set(names: Iterable[str]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if os.environ.get(name)}
