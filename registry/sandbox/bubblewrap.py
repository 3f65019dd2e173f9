"""Bubblewrap: whether it is here and works, and the command that starts a program behind it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..errors import SandboxError

_INSTALL = "install it: apt-get install bubblewrap, dnf install bubblewrap, or pacman -S bubblewrap"
_ALLOW = (
    "the system has to let users make user namespaces: user.max_user_namespaces above 0,"
    " kernel.unprivileged_userns_clone = 1, and on Ubuntu"
    " kernel.apparmor_restrict_unprivileged_userns = 0; a container has to allow them, and a /proc of their own:"
    " docker run --security-opt seccomp=unconfined --security-opt systempaths=unconfined"
)
_PROBE_S = 20.0

_APART = (
    "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
    "--uid", "65534", "--gid", "65534", "--hostname", "sandbox",
    "--cap-drop", "ALL", "--disable-userns", "--new-session", "--die-with-parent",
)  # fmt: skip
"""Namespaces of its own, no capability, no further namespace, no terminal; and it ends with its parent."""


@dataclass(frozen=True)
class SandboxView:
    """What a program behind bubblewrap sees: ``shown`` and ``devices`` are arguments of bwrap, the rest is the same.

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
            # root's number without capabilities may still write to /proc/sys
            "--proc", "/proc", "--remount-ro", "/proc",
            "--dev", "/dev", *self.devices, "--size", size, "--tmpfs", "/dev/shm",
            "--remount-ro", "/dev/pts", "--remount-ro", "/dev",
            "--remount-ro", "/",
        ]  # fmt: skip


def bubblewrap() -> str:
    """The path of bwrap. Raises SandboxError where it is missing, or cannot make a namespace here."""
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxError("--sandbox: bubblewrap (bwrap) is not installed", hint=_INSTALL)
    if fault := _fault_of(program):
        raise SandboxError(f"--sandbox: bubblewrap cannot start anything here: {fault}", hint=_ALLOW)
    return program


@lru_cache(maxsize=4)
def _fault_of(program: str) -> str:
    """Why bwrap cannot start a program, "" if it can."""
    view = SandboxView(("--ro-bind", "/", "/"), temporary_bytes=1 << 20)
    command = [program, *view.arguments(), "--", "/bin/sh", "-c", "exit 0"]
    try:
        done = subprocess.run(
            command, env={}, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as fault:
        return f"{type(fault).__name__}: {fault}"
    if done.returncode == 0:
        return ""
    told = done.stderr.decode(errors="replace").strip().splitlines()
    return told[-1].removeprefix("bwrap: ") if told else f"exit code {done.returncode}"
