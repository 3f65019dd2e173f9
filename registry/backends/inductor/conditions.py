"""What must be equal on two machines for code that Inductor compiled on one to be what the other would compile."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import torch

from ...device import installed_version
from .. import compiler_environment

GpuProperties = Mapping[str, int | str]
"""The properties of a GPU by torch's names, as far as compilers ask for them."""

_PROPERTIES = (
    "name", "major", "minor", "multi_processor_count", "warp_size", "regs_per_multiprocessor",
    "max_threads_per_block", "max_threads_per_multi_processor", "shared_memory_per_block",
    "shared_memory_per_block_optin", "shared_memory_per_multiprocessor", "L2_cache_size", "gcnArchName",
)  # fmt: skip
_WITHOUT_CODE = frozenset({"total_memory", "clock_rate", "memory_clock_rate", "memory_bus_width", "is_integrated"})
"""Properties that a compiler may ask for, and that may differ between GPUs of a model."""
_TIMEOUT_S = 60


def gpu_properties(index: int) -> dict[str, int | str]:
    """The properties of a GPU that is here, as plain values."""
    found = torch.cuda.get_device_properties(index)
    wanted = (*_PROPERTIES, *sorted(_WITHOUT_CODE))
    return {name: getattr(found, name) for name in wanted if hasattr(found, name)}


def conditions(gpu: GpuProperties) -> dict[str, str]:
    """Facts that code compiled here for a GPU of these properties depends on besides its variant, by name.

    Without properties for this machine's CPU: its instruction set as the C++ compiler names it, since Inductor compiles
    for the machine that it runs on, and the folders that its compile commands name.
    """
    python = ".".join(platform.python_version_tuple()[:2])
    found = {"torch": torch.__version__, "triton": installed_version("triton"), "python": python}
    found |= {f"variable {name}": value for name, value in compiler_environment.inductor().items()}
    if gpu:
        return found | {name: str(value) for name, value in gpu.items() if name not in _WITHOUT_CODE}
    compiler = os.environ.get("CXX", "g++")
    return found | {
        "CPU": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "C++ compiler and instruction set": _macros(compiler),
        "torch's folder": str(Path(torch.__file__).parent),
    }


def differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """The names of conditions that differ, sorted; empty if code compiled under the one serves the other."""
    return sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))


@lru_cache(maxsize=8)
def _macros(compiler: str) -> str:
    """Hash of all macros that the compiler predefines for this CPU: they hold its version and the instruction set."""
    probe = [*shlex.split(compiler), "-march=native", "-dM", "-E", "-x", "c++", os.devnull]
    try:
        done = subprocess.run(probe, capture_output=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as fault:
        return f"{compiler}: {fault}"
    return hashlib.sha256(done.stdout).hexdigest()
