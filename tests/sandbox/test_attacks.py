"""A submission attacks its judge, or the next one. Each attack works without a sandbox; in one it has no effect."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from registry.sandbox.system_calls import MACHINES
from registry.sandbox.trial import SandboxedSession

from .sandboxing import GOOD, needs_bubblewrap, reason, tried, unprotected

pytestmark = [needs_bubblewrap, pytest.mark.thorough]

SECRET = "the secret of the judge"


@pytest.fixture
def judge() -> Iterator[subprocess.Popen[bytes]]:
    """A process of this user with a secret in its environment and in its memory."""
    text = f"secret = {SECRET!r} * 2; import time; print(flush=True); time.sleep(600)"
    command = [sys.executable, "-IS", "-c", text]
    with subprocess.Popen(command, env={**os.environ, "JUDGE": SECRET}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


TRACES = """
import ctypes, os

def square(x):
    libc, told = ctypes.CDLL(None, use_errno=True), []
    for pid in [{pid}, *map(int, filter(str.isdigit, os.listdir("/proc")))]:
        if pid == os.getpid():
            continue
        if libc.ptrace(0x4206, pid, None, None) == 0:
            told.append(f"seized {{pid}}")
            libc.ptrace(17, pid, None, None)
        elif pid in (1, {pid}):
            told.append(f"{{os.strerror(ctypes.get_errno())}}")
    raise RuntimeError("ptrace: " + ", ".join(told))
"""
# by its number, as a submission would that finds no wrapper in its libc
READS_MEMORY = """
import ctypes, os

class Piece(ctypes.Structure):
    _fields_ = [("place", ctypes.c_void_p), ("size", ctypes.c_size_t)]

def square(x):
    libc, into = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(4096)
    found = "nothing to read"
    for pid in ({pid}, 1):
        try:
            with open(f"/proc/{{pid}}/maps") as maps:
                places = [line.split() for line in maps if "rw-p" in line]
        except OSError as fault:
            found = os.strerror(fault.errno)
            places = [["1000-2000"]]
        for first, last in (place[0].split("-") for place in places):
            ours, theirs = Piece(ctypes.addressof(into), 4096), Piece(int(first, 16), 4096)
            got = libc.process_vm_readv(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
            if got > 0:
                raise RuntimeError(f"read {{got}} bytes of {{pid}}")
            found = os.strerror(ctypes.get_errno())
    raise RuntimeError(f"process_vm_readv: {{found}}")
"""
LOOKS_IN_PROC = """
import os

def square(x):
    told = []
    for name in ("environ", "mem", "maps", "fd", "cwd", "root"):
        path = f"/proc/{pid}/{{name}}"
        try:
            if name in ("fd", "cwd", "root"):
                told.append(f"{{name}}: {{os.listdir(path)[:3]}}")
            else:
                with open(path, "rb") as file:
                    file.read(0)
                told.append(f"{{name}}: open")
        except OSError as fault:
            told.append(f"{{name}}: {{fault.strerror}}")
    raise RuntimeError("; ".join(told))
"""
READS_VARIABLES = """
import os

def square(x):
    held = dict(os.environ)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ") as file:
                held.update(part.split("=", 1) for part in file.read().split("\\0") if "=" in part)
        except OSError:
            pass
    raise RuntimeError("variables: " + " ".join(name for name in held if "a token" in held[name]) + ".")
"""


def test_ptrace_is_refused_by_the_filter(
    judge: subprocess.Popen[bytes], tmp_path: Path, session: SandboxedSession
) -> None:
    text = TRACES.format(pid=judge.pid)
    with pytest.raises(RuntimeError, match=f"seized {judge.pid}"):
        unprotected(text)(torch.ones(2))
    status, message = reason(text, tmp_path, session)
    assert status == "error"
    assert "ptrace: Operation not permitted" in message
    assert "seized" not in message


def test_memory_of_another_process_is_not_read(
    judge: subprocess.Popen[bytes], tmp_path: Path, session: SandboxedSession
) -> None:
    text = READS_MEMORY.format(pid=judge.pid)
    with pytest.raises(RuntimeError, match=f"read 4096 bytes of {judge.pid}"):
        unprotected(text)(torch.ones(2))
    status, message = reason(text, tmp_path, session)
    assert status == "error"
    assert "process_vm_readv: Operation not permitted" in message


def test_proc_shows_no_process_of_this_machine(
    judge: subprocess.Popen[bytes], tmp_path: Path, session: SandboxedSession
) -> None:
    text = LOOKS_IN_PROC.format(pid=judge.pid)
    with pytest.raises(RuntimeError, match="environ: open; mem: open; maps: open; fd: "):
        unprotected(text)(torch.ones(2))
    status, message = reason(text, tmp_path, session)
    assert status == "error"
    assert "open" not in message.replace("RuntimeError", "")
    assert message.count("No such file or directory") == 6


def test_no_variable_of_the_environment_gets_in(
    tmp_path: Path, session: SandboxedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOX_TEST_TOKEN", "a token")
    with pytest.raises(RuntimeError, match="SANDBOX_TEST_TOKEN"):
        unprotected(READS_VARIABLES)(torch.ones(2))
    assert reason(READS_VARIABLES, tmp_path, session) == ("error", "RuntimeError: variables: .")


# overwrites whatever it finds of caches, compiled Python, and packages that the next one imports
POISONS = """
import os, pathlib, sys

def square(x):
    places = [os.environ.get(name, "") for name in (
        "KERNEL_REGISTRY_CACHE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "TMPDIR")]
    places += [os.path.dirname(sys.modules[name].__file__) for name in ("registry", "torch")] + {more!r}
    for place in filter(None, places):
        try:
            os.makedirs(place, exist_ok=True)
            for path in [place + "/sitecustomize.py", *map(str, pathlib.Path(place).glob("**/poisonable*"))]:
                pathlib.Path(path).write_text("import os; os._exit(66)")
        except OSError:
            pass
    return x * x
"""


def test_a_poisoned_cache_reaches_neither_this_machine_nor_the_next_one(
    tmp_path: Path, session: SandboxedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, work = tmp_path / "cache", tmp_path / "work"
    work.mkdir()
    (cache / "cpp").mkdir(parents=True)
    compiled = cache / "cpp" / "poisonable.so"
    compiled.write_text("compiled")
    text = POISONS.format(more=[str(cache)])
    before = sorted(each for each in Path(torch.__file__).parent.iterdir() if each.suffix == ".py")
    for name in ("KERNEL_REGISTRY_CACHE", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, str(cache))
    found = tried(text, work, session)
    assert (found.outcome.status, found.outcome.message) == ("ok", "")
    assert compiled.read_text() == "compiled"
    assert not (cache / "sitecustomize.py").exists()
    assert sorted(each for each in Path(torch.__file__).parent.iterdir() if each.suffix == ".py") == before
    following = tried(GOOD, work, session)
    assert (following.outcome.status, following.outcome.message) == ("ok", "")


def test_the_calls_of_these_attacks_are_known_on_every_machine() -> None:
    for told in MACHINES.values():
        assert {"ptrace", "process_vm_readv", "process_vm_writev"} <= set(told.refused)
