"""A control group of a sandbox, on machines where this user may make one."""

from __future__ import annotations

import subprocess

import pytest

from registry.sandbox.control_group import ControlGroup
from registry.sandbox.limits import SandboxLimits


def test_a_group_holds_a_process_to_its_memory_and_goes() -> None:
    group = ControlGroup.made(SandboxLimits(memory_bytes=64 << 20, processes=16))
    if group is None:
        pytest.skip("no control group of version 2 can be made here")
    try:
        assert (group.folder / "memory.max").read_text().strip() == str(64 << 20)
        assert (group.folder / "pids.max").read_text().strip() == "16"
        assert not group.ran_out
        takes = 'echo 0 > "$1"/cgroup.procs && exec tail -c 1G /dev/zero'
        assert subprocess.run(["/bin/sh", "-c", takes, "sh", str(group.folder)], check=False).returncode != 0
        assert group.ran_out
    finally:
        group.remove()
    assert not group.folder.exists()
