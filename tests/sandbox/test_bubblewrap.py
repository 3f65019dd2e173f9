"""Where there is no sandbox, there is an error, and nothing runs without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from registry.errors import SandboxError
from registry.sandbox.bubblewrap import SandboxView, bubblewrap
from registry.sandbox.entrant import SandboxedEntrant
from tests.sandbox.sandboxing import CPU, LIMITS, needs_bubblewrap

WRITABLE = """
import os

for folder, folders, files in os.walk("/proc"):
    if folder == "/proc":
        folders[:] = [name for name in folders if not name.isdigit()]
    for name in files:
        try:
            os.close(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_NONBLOCK))
            print(os.path.join(folder, name))
        except OSError:
            pass
with open("/proc/self/comm", "w") as name:
    name.write("named")
with open("/proc/self/comm") as name:
    print(name.read())
"""


def test_bubblewrap_that_cannot_make_namespaces_is_an_error_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match="No permissions to create new namespace") as raised:
        bubblewrap()
    assert "max_user_namespaces" in raised.value.hint
    most = Path("/proc/sys/user/max_user_namespaces")
    if most.exists():
        assert f"here user.max_user_namespaces = {most.read_text().strip()}" in raised.value.hint


def test_bubblewrap_without_its_libraries_is_an_error_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "bwrap"
    told = "bwrap: error while loading shared libraries: libcap.so.2: cannot open shared object file"
    program.write_text(f"#!/bin/sh\necho '{told}' >&2\nexit 127\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match=r"libcap\.so\.2") as raised:
        bubblewrap()
    assert "ldd bwrap" in raised.value.hint
    assert "max_user_namespaces" not in raised.value.hint


def test_every_namespace_is_its_own_and_every_mount_is_read_only_or_small() -> None:
    arguments = SandboxView(("--ro-bind", "/usr", "/usr"), temporary_bytes=4096).arguments()
    for kind in ("user", "pid", "net", "ipc", "uts"):
        assert f"--unshare-{kind}" in arguments
    assert arguments.count("4096") == arguments.count("--tmpfs") == 2
    assert {arguments[place + 1] for place, one in enumerate(arguments) if one == "--remount-ro"} >= {"/", "/dev"}


@needs_bubblewrap
def test_the_kernels_files_in_proc_are_read_only_but_threads_can_be_named() -> None:
    """CUDA's driver writes names of threads, and fails where it cannot."""
    view = SandboxView(("--ro-bind", "/", "/"), temporary_bytes=1 << 20)
    command = [bubblewrap(), *view.arguments(), "--", sys.executable, "-I", "-S", "-c", WRITABLE]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["named"]


def test_a_compiler_that_a_variable_names_is_shown_with_its_own_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder in ("tools/bin", "links"):
        (tmp_path / folder).mkdir(parents=True)
    compiler, link = tmp_path / "tools/bin/gcc", tmp_path / "links/cc"
    compiler.touch()
    link.symlink_to(compiler)
    monkeypatch.setenv("CC", f"{link} -m64")
    shown = SandboxedEntrant("square", "a.stranger").view(CPU, LIMITS).shown
    assert str(tmp_path / "tools") in shown
    assert str(tmp_path / "links") in shown
