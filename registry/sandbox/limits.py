"""What a sandbox may use: memory, files, processes and time."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from ..errors import InvalidArgumentError

_MEMORY_FLOOR = 0.04
"""The part of the machine's memory that stays free: a sandbox that takes more of it is ended."""

_COUNTED_APART = (5, 14)
"""From this Linux on the processes of a user namespace are counted for themselves, before with all of the user's."""


@dataclass(frozen=True)
class SandboxLimits:
    """Limits of one sandbox. Sizes are bytes, times seconds.

    memory_bytes    of all its processes where a control group can be made, else of each
    temporary_bytes files in its /tmp, which is memory; largest file anywhere
    processes       and threads, at most
    cores           whose time all its processes may use, where a control group can be made
    open_files      of each process
    gpu_bytes       what the device lacks while it runs, beside inputs and outputs
    load_s          starting, importing and compiling it
    run_s           one request: a call, or a sample's worth of calls
    """

    memory_bytes: int = 8 << 30
    temporary_bytes: int = 2 << 30
    processes: int = 2048
    cores: int = field(default_factory=lambda: os.cpu_count() or 1)
    open_files: int = 1024
    gpu_bytes: int = 16 << 30
    load_s: float = 180.0
    run_s: float = 30.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not value > 0:
                raise InvalidArgumentError(f"sandbox limits: {each.name} is {value}", hint="expected more than 0")

    def as_data(self) -> dict[str, float]:
        """The limits as plain numbers."""
        return asdict(self)


def limit_this_process(given: Mapping[str, float]) -> None:
    """Set this process's resource limits, which its children inherit and none can raise.

    ``given``: ``SandboxLimits`` as data, and ``is_gpu``. CUDA reserves addresses by the terabyte, and maps them, so
    that memory is not limited this way beside a GPU.
    """
    import resource  # not on Windows

    wanted = {
        resource.RLIMIT_FSIZE: given["temporary_bytes"],
        resource.RLIMIT_NOFILE: given["open_files"],
        resource.RLIMIT_CORE: 0,
    }
    if _linux() >= _COUNTED_APART:
        wanted[resource.RLIMIT_NPROC] = given["processes"]
    if not given["is_gpu"]:
        wanted[resource.RLIMIT_DATA] = given["memory_bytes"]
    for kind, most in wanted.items():
        _, hard = resource.getrlimit(kind)
        least = int(most) if hard == resource.RLIM_INFINITY else min(int(most), hard)
        resource.setrlimit(kind, (least, least))


def _linux() -> tuple[int, ...]:
    """The kernel's version, (5, 14)."""
    return tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])


def memory_is_short() -> bool:
    """Whether the machine has nearly no memory left (Linux; elsewhere never)."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            found[name] = int(rest.split()[0])
    total, free = found.get("MemTotal", 0), found.get("MemAvailable", 0)
    return bool(total) and free < _MEMORY_FLOOR * total
