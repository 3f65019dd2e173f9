"""A submission looks around: at files, processes, the environment and the network. Nothing of this machine is there."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path

import pytest
import torch

from registry.sandbox.system_calls import MACHINES
from registry.sandbox.trial import SandboxedSession

from .sandboxing import loaded, needs_bubblewrap, unprotected

pytestmark = needs_bubblewrap

# in a process of one thread, which may go on after a call of the kernel's own
CLONES = """
import ctypes, os
pid = ctypes.CDLL(None).syscall({clone}, 0x10000011, None, None, None, None)
if pid == 0:
    os._exit(0)
if pid > 0:
    os.waitpid(pid, 0)
    print("made a namespace")
"""
LOOKS_AROUND = """
import ctypes, os, pathlib, socket, subprocess, sys

def found():
    seen = []
    for path in {paths!r}:
        try:
            seen.append(f"read {{path}}: {{pathlib.Path(path).read_bytes()[:20]!r}}")
        except OSError:
            pass
    seen += [f"variable {{name}}={{value}}" for name, value in os.environ.items() if "SECRET" in name]
    others = [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) not in (1, os.getpid(), os.getppid())]
    seen += [f"process {{pid}}" for pid in others if pid == "{parent}" or len(others) > 5]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for name in ("environ", "cmdline"):
            try:
                text = pathlib.Path(f"/proc/{{pid}}/{{name}}").read_text(errors="replace")
                if "SECRET" in text or {folder!r} in text:
                    seen.append(f"{{name}} of {{pid}}")
            except OSError:
                pass
    if ctypes.CDLL(None, use_errno=True).ptrace(16, {parent}, None, None) == 0:
        ctypes.CDLL(None).ptrace(17, {parent}, None, None)
        seen.append("traced its parent")
    if ctypes.CDLL(None, use_errno=True).unshare(0) == 0:
        seen.append("may leave namespaces")
    if "made" in subprocess.run([sys.executable, "-IS", "-c", {clones!r}], capture_output=True, text=True).stdout:
        seen.append("may make namespaces")
    for family, address in ((socket.AF_INET, ("127.0.0.1", {port})), (socket.AF_UNIX, {abstract!r})):
        try:
            with socket.socket(family) as there:
                there.connect(address)
            seen.append(f"connected to {{address}}")
        except OSError:
            pass
    return seen

def square(x):
    if seen := found():
        raise RuntimeError("found: " + "; ".join(seen))
    return x * x
"""


def test_nothing_of_this_machine_is_seen(
    tmp_path: Path, session: SandboxedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "of the shell")
    secret = tmp_path / "other_submission.py"
    secret.write_text("the winning kernel")
    name, clones = f"\0sandbox-{os.getpid()}", CLONES.format(clone=MACHINES[platform.machine()].clone)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(name)
        local.listen()
        text = LOOKS_AROUND.format(
            paths=[str(secret), "/etc/passwd", str(Path.home() / ".bashrc"), f"/proc/{os.getpid()}/maps"],
            clones=clones, parent=os.getpid(), folder=str(tmp_path.parent), port=server.getsockname()[1], abstract=name,
        )  # fmt: skip
        with pytest.raises(RuntimeError, match=r"the winning kernel.*SECRET.*namespaces.*connected"):
            unprotected(text)(torch.ones(2))
        with loaded(text, tmp_path, session) as call:
            x = torch.randn(4096)
            torch.testing.assert_close(call(x), x * x)


WRITES = """
import os, pathlib

def square(x):
    done = []
    for folder in ("/", "/usr", "/sandbox", "/dev", "/proc/sys/kernel", os.path.dirname(os.__file__)):
        try:
            with open(os.path.join(folder, "core_pattern"), "w") as file:
                file.write("core")
            done.append(folder)
        except OSError:
            pass
    places = ("/tmp/mark", "/tmp/home/mark", "/dev/shm/mark", "/tmp/cache/mark")
    marks = [path for path in places if os.path.exists(path)]
    for path in places:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        pathlib.Path(path).write_text("poison")
    if done or marks:
        raise RuntimeError(f"wrote to {done}, found {marks}")
    return x * x
"""


@pytest.mark.thorough
def test_nothing_is_written_that_the_next_one_finds(tmp_path: Path, session: SandboxedSession) -> None:
    for _ in range(2):
        with loaded(WRITES, tmp_path, session) as call:
            x = torch.randn(4096)
            torch.testing.assert_close(call(x), x * x)
            # in one sandbox what was written is there
            with pytest.raises(Exception, match="/tmp/mark"):
                call(x)
    assert not Path("/tmp/mark").exists()
