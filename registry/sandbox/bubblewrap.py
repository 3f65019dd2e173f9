"""Bubblewrap: whether it is here and works, and the command that starts a program behind it."""

from __future__ import annotations

import contextlib
import shutil
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..errors import SandboxError
from .system_calls import filter_program

_INSTALL = "install it: apt-get install bubblewrap, dnf install bubblewrap, or pacman -S bubblewrap"
_ALLOW = (
    "the system has to let users make user namespaces: user.max_user_namespaces above 0,"
    " kernel.unprivileged_userns_clone = 1, and on Ubuntu"
    " kernel.apparmor_restrict_unprivileged_userns = 0; a container has to allow them, and a /proc of their own:"
    " docker run --security-opt seccomp=unconfined --security-opt systempaths=unconfined"
)
_NEWER = "bubblewrap 0.5 has all that is needed on x86-64 and arm64, 0.8 elsewhere"
_WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_LIBRARIES = (
    "its libraries are missing: install bubblewrap by the system's packages; for one that was copied, copy what"
    " `ldd bwrap` lists, too, and put a script named bwrap into PATH that runs it with LD_LIBRARY_PATH"
)
_SETTINGS = (
    "user/max_user_namespaces", "user/max_pid_namespaces", "user/max_net_namespaces",
    "kernel/unprivileged_userns_clone", "kernel/apparmor_restrict_unprivileged_userns",
)  # fmt: skip
"""Settings below /proc/sys by which a system allows users to make namespaces or forbids it."""
_PROBE_S = 60.0

_APART = (
    "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
    "--uid", "65534", "--gid", "65534", "--hostname", "sandbox",
    "--cap-drop", "ALL", "--new-session", "--die-with-parent",
)  # fmt: skip
"""Namespaces of its own, no capability, no terminal; and it ends with its parent."""

_NO_FURTHER = "--disable-userns"
"""An option of bubblewrap 0.8, for what the filter of system calls refuses, too."""


@dataclass(frozen=True)
class SandboxView:
    """What a program behind bubblewrap sees, besides what all do: ``shown`` and ``devices`` are arguments of bwrap.

    /tmp and /dev/shm are its own and empty; ``temporary_bytes`` limits each.
    """

    shown: Sequence[str]
    devices: Sequence[str] = ()
    temporary_bytes: int = 1 << 30

    def arguments(self) -> list[str]:
        """All arguments of bwrap but the command."""
        size = str(self.temporary_bytes)
        return [
            *_APART, "--clearenv",
            # what is shown may lie in /tmp
            "--size", size, "--tmpfs", "/tmp", "--dir", "/tmp/home", "--chdir", "/tmp",
            *self.shown,
            "--proc", "/proc", *_sealed_proc(),
            "--dev", "/dev", *self.devices, "--size", size, "--tmpfs", "/dev/shm",
            "--remount-ro", "/dev/pts", "--remount-ro", "/dev",
            "--remount-ro", "/",
        ]  # fmt: skip


def _sealed_proc() -> list[str]:
    """Arguments of bwrap that make read-only what of /proc is the kernel's: root's number may write to it without any
    capability. The folders of processes stay writable: CUDA's driver names its threads there, and fails if it cannot.
    """
    kernels = (each for each in sorted(Path("/proc").iterdir()) if not each.name.isdigit() and not each.is_symlink())
    written = (each for each in kernels if each.is_dir() or each.stat().st_mode & _WRITABLE)
    return [part for each in written for part in ("--ro-bind-try", str(each), str(each))]


def bubblewrap() -> str:
    """The path of bwrap. Raises SandboxError where it is missing, or cannot make a namespace here."""
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxError("--sandbox: bubblewrap (bwrap) is not installed", hint=_INSTALL)
    if fault := _fault_of(program):
        raise SandboxError(f"--sandbox: bubblewrap cannot start anything here: {fault}", hint=_remedy_of(fault))
    return program


def _remedy_of(fault: str) -> str:
    if "nknown option" in fault:
        return _NEWER
    if "shared librar" in fault:
        return _LIBRARIES
    return f"{_ALLOW}; here {told}" if (told := _settings_told()) else _ALLOW


def _settings_told() -> str:
    """What this system says of namespaces, as text."""
    found = []
    for name in _SETTINGS:
        with contextlib.suppress(OSError):
            value = Path("/proc/sys", name).read_text().strip()
            found.append(f"{name.replace('/', '.')} = {value}")
    return ", ".join(found)


def options_of(program: str) -> list[str]:
    """Arguments that only some versions of bwrap know. Raises SandboxError where it lacks one that is needed."""
    told = _help(program)
    if _NO_FURTHER in told:
        return [_NO_FURTHER]
    if not filter_program():
        raise SandboxError(f"--sandbox: bubblewrap has no {_NO_FURTHER}", hint=_NEWER)
    return []


@lru_cache(maxsize=4)
def _help(program: str) -> str:
    return subprocess.run(
        [program, "--help"], env={}, capture_output=True, text=True, timeout=_PROBE_S, check=False, errors="replace"
    ).stdout


@lru_cache(maxsize=4)
def _fault_of(program: str) -> str:
    """Why bwrap cannot start a program, "" if it can. Raises SandboxError if that takes too long."""
    view = SandboxView(("--ro-bind", "/", "/"), temporary_bytes=1 << 20)
    command = [program, *view.arguments(), "--", "/bin/sh", "-c", "exit 0"]
    try:
        done = subprocess.run(
            command, env={}, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_S, check=False
        )
    except OSError as fault:
        return f"{type(fault).__name__}: {fault}"
    except subprocess.TimeoutExpired:
        # not remembered: a busy machine may have time later
        raise SandboxError(
            f"--sandbox: bubblewrap started nothing within {_PROBE_S:.0f} s", hint="the machine may be busy: try again"
        ) from None
    if done.returncode == 0:
        return ""
    told = done.stderr.decode(errors="replace").strip().splitlines()
    return told[-1].removeprefix("bwrap: ") if told else f"exit code {done.returncode}"
