"""Control groups of sandboxes: where this user may make one, and on folders and programs in the place of a system's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from registry.sandbox import control_group
from registry.sandbox.control_group import ControlGroup, FolderGroup, SystemdScope, parents
from registry.sandbox.limits import SandboxLimits

LIMITS = SandboxLimits(memory_bytes=64 << 20, processes=16, cores=2)


def test_a_group_holds_a_process_to_its_memory_and_goes() -> None:
    group = ControlGroup.made(LIMITS)
    if group is None:
        pytest.skip("no control group of version 2 can be made here")
    try:
        assert not group.ran_out
        # a line that never ends; the last bytes of /dev/zero are found without reading it
        ended = _run_in(group, "exec tail /dev/zero")
        assert ended.returncode != 0
        assert group.ran_out
    finally:
        group.remove()
    assert not isinstance(group, FolderGroup) or not group.folder.exists()


def test_a_group_holds_a_process_to_its_number_of_processes() -> None:
    group = ControlGroup.made(LIMITS)
    if group is None:
        pytest.skip("no control group of version 2 can be made here")
    try:
        ended = _run_in(group, "for each in $(seq 40); do sleep 1 & done; wait")
        assert ended.returncode != 0
        assert "fork" in ended.stderr
        assert not group.ran_out
    finally:
        group.remove()


def _run_in(group: ControlGroup, script: str) -> subprocess.CompletedProcess[str]:
    """What a shell in the group printed and ended with, within a minute."""
    environment = {"PATH": os.environ.get("PATH", ""), **group.environment}
    command = group.command(["/bin/sh", "-c", script])
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def a_tree(root: Path, handed: dict[str, str]) -> None:
    """Folders as under /sys/fs/cgroup, each with the controllers that it hands to its children."""
    for name, controllers in handed.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "cgroup.subtree_control").write_text(controllers)


def test_groups_that_hand_on_memory_and_processes_are_found_nearest_first(tmp_path: Path) -> None:
    a_tree(tmp_path, {".": "cpu memory pids", "user": "memory pids", "user/session": "cpu"})
    own = tmp_path / "own"
    own.write_text("12:memory:/elsewhere\n0::/user/session\n")
    assert parents(tmp_path, own) == [tmp_path / "user", tmp_path]
    assert parents(tmp_path / "none", tmp_path / "nothing") == []


def test_a_folder_gets_all_limits_and_a_command_joins_it(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no group can be made in a file")
    a_tree(tmp_path, {"user": "memory pids"})
    group = FolderGroup.made_in([blocked, tmp_path / "user"], LIMITS)
    assert group is not None
    assert group.folder.parent == tmp_path / "user"
    told = {each.name: each.read_text().strip() for each in group.folder.iterdir()}
    assert told == {
        "memory.max": str(64 << 20), "pids.max": "16", "memory.swap.max": "0", "memory.oom.group": "1",
        "cpu.max": "200000 100000", "cgroup.procs": "0",
    }  # fmt: skip
    done = subprocess.run(group.command(["/bin/echo", "inside"]), capture_output=True, text=True, check=True)
    assert done.stdout == "inside\n"
    (group.folder / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert group.ran_out
    (group.folder / "memory.events").write_text("oom_kill 0\n")
    assert not group.ran_out


def test_a_group_that_takes_no_process_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_group, "_GONE_S", 0.0)
    monkeypatch.setattr(control_group, "_JOIN", "exit 1")
    a_tree(tmp_path, {"user": "memory pids"})
    assert FolderGroup.made_in([tmp_path / "user"], LIMITS) is None


SYSTEMD_RUN = """#!/bin/sh
echo "$@" >> "{log}"
while [ "$1" != "--" ]; do shift; done
shift
{closes}
exec "$@"
"""


def a_systemd(folder: Path, closes: str = "") -> Path:
    """Programs in the place of systemd's, which write down what they are asked; returns the file that holds it."""
    log = folder / "log"
    (folder / "systemd-run").write_text(SYSTEMD_RUN.format(log=log, closes=closes))
    (folder / "systemctl").write_text(f'#!/bin/sh\necho "$@" >> "{log}"\necho oom-kill\n')
    for name in ("systemd-run", "systemctl"):
        (folder / name).chmod(0o755)
    return log


def test_a_scope_of_systemd_is_asked_for_all_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    log = a_systemd(tmp_path)
    group = SystemdScope.made_by_systemd(LIMITS)
    assert group is not None
    done = subprocess.run(
        group.command(["/bin/echo", "inside"]), env=dict(group.environment), capture_output=True, text=True, check=True
    )
    assert done.stdout == "inside\n"
    asked = log.read_text().splitlines()[-1]
    assert "OOMPolicy=kill" in asked
    for told in ("--user --scope", "MemoryMax=67108864", "TasksMax=16", "CPUQuota=200%", "MemorySwapMax=0"):
        assert told in asked
    assert group.ran_out
    group.remove()
    assert "reset-failed kernel-registry-" in log.read_text().splitlines()[-1]


def test_a_systemd_that_knows_no_policy_of_scopes_makes_them_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    refuses = tmp_path / "systemd-run"
    a_systemd(tmp_path)
    refuses.write_text(refuses.read_text().replace("while", 'case "$*" in *OOMPolicy*) exit 1;; esac\nwhile', 1))
    group = SystemdScope.made_by_systemd(LIMITS)
    assert group is not None
    assert not [part for part in group.command(["/bin/true"]) if "OOMPolicy" in part]


def test_systemd_that_closes_descriptors_or_is_not_there_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    # dash knows descriptors of one digit only, and so does the test: the pipe's are closed by Python before the exec
    closing = "exec python3 -c 'import os, sys; os.closerange(3, 4096); os.execv(sys.argv[1], sys.argv[1:])' \"$@\""
    a_systemd(tmp_path, closing)
    assert SystemdScope.made_by_systemd(LIMITS) is None
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert SystemdScope.made_by_systemd(LIMITS) is None
