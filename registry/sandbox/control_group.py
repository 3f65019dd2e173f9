"""A control group (version 2) for one sandbox: a folder that this user may make, or a scope of the user's systemd."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from .limits import SandboxLimits

_ROOT = Path("/sys/fs/cgroup")
_NEEDED = frozenset({"memory", "pids"})
_GONE_S = 5.0
_ASK_S = 10.0
_PERIOD_US = 100_000
_JOIN = 'echo 0 > "$1"/cgroup.procs && shift && exec "$@"'
_HAS_DESCRIPTOR = 'test -e "/proc/self/fd/$1"'
_POLICIES: Sequence[Mapping[str, str]] = ({"OOMPolicy": "kill"}, {})
"""Scopes have a policy, and tell that memory ran out, from systemd 253 on."""
_OF_SESSION = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")


class ControlGroup(ABC):
    """Holds a command and all that it starts to limits of memory, processes and cores.

    ``told`` says what it is, in words.
    """

    told: str

    @staticmethod
    def made(limits: SandboxLimits) -> ControlGroup | None:
        """A new group with these limits; None where there is no version 2, or no right to make a group."""
        return FolderGroup.made_in(parents(), limits) or SystemdScope.made_by_systemd(limits)

    @abstractmethod
    def command(self, inside: Sequence[str]) -> list[str]:
        """The command that joins the group and then becomes ``inside``."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that joining needs."""
        return {}

    @property
    @abstractmethod
    def ran_out(self) -> bool:
        """Whether the kernel has ended a process of the group for want of memory."""

    @abstractmethod
    def remove(self) -> None:
        """Remove the group, whose processes have ended."""


class FolderGroup(ControlGroup):
    """A folder under /sys/fs/cgroup. A process joins by writing 0 to its ``cgroup.procs``."""

    told = "control group"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def made_in(cls, places: Sequence[Path], limits: SandboxLimits) -> FolderGroup | None:
        """A new group in the first of these groups where that is possible, None if it is in none."""
        for parent in places:
            group = cls(parent / f"kernel-registry-{uuid.uuid4().hex[:12]}")
            try:
                group.folder.mkdir()
            except OSError:
                continue
            if group._set(limits) and group.takes_processes():
                return group
            group.remove()
        return None

    def _set(self, limits: SandboxLimits) -> bool:
        """Write the limits; False if those of memory or processes cannot be."""
        try:
            (self.folder / "memory.max").write_text(str(limits.memory_bytes))
            (self.folder / "pids.max").write_text(str(limits.processes))
        except OSError:
            return False
        cores = f"{limits.cores * _PERIOD_US} {_PERIOD_US}"
        # a kernel without swap accounting lacks the first, a parent may keep the last
        for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1"), ("cpu.max", cores)):
            with contextlib.suppress(OSError):
                (self.folder / name).write_text(value)
        return True

    def takes_processes(self) -> bool:
        """Whether a process of this user may join."""
        return subprocess.run(self.command(["/bin/true"]), capture_output=True, check=False).returncode == 0

    def command(self, inside: Sequence[str]) -> list[str]:
        return ["/bin/sh", "-c", _JOIN, "sh", str(self.folder), *inside]

    @property
    def ran_out(self) -> bool:
        with contextlib.suppress(OSError, ValueError):
            for line in (self.folder / "memory.events").read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill" and int(count):
                    return True
        return False

    def remove(self) -> None:
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


class SystemdScope(ControlGroup):
    """A transient scope of the user's systemd, which makes groups where the user itself may not."""

    told = "control group (systemd)"

    def __init__(self, limits: SandboxLimits, policy: Mapping[str, str]) -> None:
        self._unit = f"kernel-registry-{uuid.uuid4().hex[:12]}.scope"
        self._limits = limits
        self._policy = policy

    @classmethod
    def made_by_systemd(cls, limits: SandboxLimits) -> SystemdScope | None:
        """A new scope; None where no systemd of this user answers, or its scopes do not pass descriptors on."""
        policy = _policy(os.environ.get("PATH", ""), *_session().items())
        return None if policy is None else cls(limits, policy)

    def command(self, inside: Sequence[str]) -> list[str]:
        limits = self._limits
        properties = {
            "MemoryMax": limits.memory_bytes, "MemorySwapMax": 0, "TasksMax": limits.processes,
            "CPUQuota": f"{100 * limits.cores}%", **self._policy,
        }  # fmt: skip
        told = [part for name, value in properties.items() for part in ("-p", f"{name}={value}")]
        program = shutil.which("systemd-run") or "systemd-run"
        return [program, "--user", "--scope", "--quiet", f"--unit={self._unit}", *told, "--", *inside]

    @property
    def environment(self) -> Mapping[str, str]:
        return _session()

    @property
    def ran_out(self) -> bool:
        return self._systemctl("show", "--property=Result", "--value") == "oom-kill"

    def remove(self) -> None:
        # a scope goes with its last process; one that was ended by the kernel is kept until it is forgotten
        self._systemctl("reset-failed")

    def _systemctl(self, *words: str) -> str:
        try:
            done = subprocess.run(
                ["systemctl", "--user", *words, self._unit], env={**self.environment, "PATH": os.environ["PATH"]},
                capture_output=True, text=True, timeout=_ASK_S, check=False,
            )  # fmt: skip
        except (OSError, KeyError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.strip()


def _session() -> dict[str, str]:
    """Variables by which systemd-run finds the user's systemd."""
    return {name: os.environ[name] for name in _OF_SESSION if os.environ.get(name)}


@lru_cache(maxsize=4)
def _policy(path: str, *session: tuple[str, str]) -> Mapping[str, str] | None:
    """The first of ``_POLICIES`` with which a scope can be made, None if with none."""
    if not session or shutil.which("systemd-run", path=path) is None:
        return None
    return next((policy for policy in _POLICIES if _makes_scopes(policy, dict(session))), None)


def _makes_scopes(policy: Mapping[str, str], session: Mapping[str, str]) -> bool:
    """Whether systemd-run makes a scope that limits memory and processes, and leaves descriptors open."""
    reads, writes = os.pipe()
    probe = SystemdScope(SandboxLimits(), policy)
    try:
        command = probe.command(["/bin/sh", "-c", _HAS_DESCRIPTOR, "sh", str(writes)])
        done = subprocess.run(
            command, env=dict(session), stdin=subprocess.DEVNULL, capture_output=True, pass_fds=(writes,),
            timeout=_ASK_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    finally:
        os.close(reads)
        os.close(writes)
    return done.returncode == 0


def parents(root: Path = _ROOT, own: Path = Path("/proc/self/cgroup")) -> list[Path]:
    """Groups that hand memory and pids to their children: this process's own, and those above it, nearest first."""
    name = ""
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            if line.startswith("0::"):
                name = line.removeprefix("0::").strip("/")
    found = []
    place = root / name
    while place == root or root in place.parents:
        with contextlib.suppress(OSError):
            handed = set((place / "cgroup.subtree_control").read_text().split())
            if handed >= _NEEDED and os.access(place, os.W_OK):
                found.append(place)
        place = place.parent
    return found


def limits_told() -> str:
    """What limits the memory of sandboxes on this machine, as a sentence."""
    group = ControlGroup.made(SandboxLimits())
    if group is None:
        return "sandboxes: no control group of version 2 can be made here: resource limits hold each process by itself"
    group.remove()
    return f"sandboxes: a {group.told} limits memory, processes and cores of each"
