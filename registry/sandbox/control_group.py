"""A control group (version 2) for one sandbox, where this user may make one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from .limits import SandboxLimits

_ROOT = Path("/sys/fs/cgroup")
_NEEDED = frozenset({"memory", "pids"})
_GONE_S = 5.0


@dataclass(frozen=True)
class ControlGroup:
    """A folder under /sys/fs/cgroup. A process joins by writing 0 to its ``cgroup.procs``."""

    folder: Path

    @classmethod
    def made(cls, limits: SandboxLimits) -> ControlGroup | None:
        """A new group with these limits; None where there is no version 2, or no right to make one."""
        for parent in _parents():
            folder = parent / f"kernel-registry-{uuid.uuid4().hex[:12]}"
            try:
                folder.mkdir()
            except OSError:
                continue
            group = cls(folder)
            try:
                (folder / "memory.max").write_text(str(limits.memory_bytes))
                (folder / "pids.max").write_text(str(limits.processes))
            except OSError:
                group.remove()
                continue
            if not group.takes_processes():
                group.remove()
                continue
            for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
                with contextlib.suppress(OSError):  # a kernel without swap accounting lacks the first
                    (folder / name).write_text(value)
            return group
        return None

    def takes_processes(self) -> bool:
        """Whether a process of this user may join."""
        command = ["/bin/sh", "-c", 'echo 0 > "$1"/cgroup.procs', "sh", str(self.folder)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    @property
    def ran_out(self) -> bool:
        """Whether the kernel has ended a process of the group for want of memory."""
        with contextlib.suppress(OSError, ValueError):
            for line in (self.folder / "memory.events").read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill" and int(count):
                    return True
        return False

    def remove(self) -> None:
        """Remove the group, whose processes have ended."""
        until = time.monotonic() + _GONE_S
        while time.monotonic() < until:
            try:
                self.folder.rmdir()
            except FileNotFoundError:
                return
            except OSError:  # the kernel counts a process that has just ended for a moment
                time.sleep(0.01)
            else:
                return


def _parents() -> list[Path]:
    """Groups that hand memory and pids to their children: this process's own, and those above it, nearest first."""
    own = ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                own = line.removeprefix("0::").strip("/")
    found = []
    place = _ROOT / own
    while place == _ROOT or _ROOT in place.parents:
        with contextlib.suppress(OSError):
            handed = set((place / "cgroup.subtree_control").read_text().split())
            if handed >= _NEEDED and os.access(place, os.W_OK):
                found.append(place)
        place = place.parent
    return found
