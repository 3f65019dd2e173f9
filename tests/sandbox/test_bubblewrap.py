"""Where there is no sandbox, there is an error, and nothing runs without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.errors import SandboxError
from registry.sandbox.bubblewrap import SandboxView, bubblewrap


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
    assert {arguments[place + 1] for place, one in enumerate(arguments) if one == "--remount-ro"} >= {
        "/",
        "/dev",
        "/proc",
    }
