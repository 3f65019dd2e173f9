"""Every command of docs/fleet.md runs, and the files for Slurm and Kubernetes start workers as they say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tuning_db import JobQueue

from .conftest import ROOT, queue_squares

PAGE = ROOT / "docs" / "fleet.md"
SLURM, KUBERNETES = ROOT / "docs" / "fleet" / "slurm.sh", ROOT / "docs" / "fleet" / "kubernetes.yaml"

SHAPES = "square:\n  - {n: 64, dtype: float32}\n"


def commands() -> list[str]:
    found = [line[2:] for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
             for line in block.splitlines() if line.startswith("$ ")]  # fmt: skip
    assert len(found) >= 8
    return found


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    """The scripts that an installation has; and ``srun``, which starts one task of a job here."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, module, call in (("registry", "main", "main"), ("tune", "tune", "main")):
        code = f"from registry.cli.{module} import {call}; {call}()"
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    (folder / "srun").write_text('#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n')
    for each in folder.iterdir():
        each.chmod(0o755)
    return folder


def run(command: list[str] | str, bin_folder: Path, database: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
    environment = {
        **os.environ, "PYTHONPATH": path, "PATH": f"{bin_folder}:{os.environ['PATH']}", "KERNEL_REGISTRY_DB": database,
        "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    return subprocess.run(
        command, shell=isinstance(command, str), env=environment, capture_output=True, text=True, check=False,
        timeout=500, cwd=bin_folder.parent,
    )  # fmt: skip


def here(command: str, shapes: Path) -> str:
    """A command of the guide for this machine, which has no GPU and no Ray cluster of others."""
    for theirs, ours in {
        "configs/llm.yaml": str(shapes),
        "--device cuda:0": "--device cpu",
        "ray://head:10001 --compilers 32": "local --device cpu --compilers 1 --trials 2",
        "docs/fleet/": f"{SLURM.parent}/",
    }.items():
        command = command.replace(theirs, ours)
    return command


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_the_commands_of_the_guide_run_one_after_another(tmp_path: Path, bin_folder: Path) -> None:
    shapes, database = tmp_path / "shapes.yaml", str(tmp_path / "fleet.db")
    shapes.write_text(SHAPES)
    ours = [one for one in commands() if shlex.split(one)[0] in {"registry", "tune"}]
    ours.remove("registry fleet watch")  # it ends with Ctrl-C; see tests/cli/fleet/test_watch.py
    assert len(ours) >= 5
    for command in ours:
        done = run(here(command, shapes), bin_folder, database)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    with JobQueue.open(database) as queue:
        counts = {one.device: (one.queued, one.done) for one in queue.status().jobs}
    assert counts["NVIDIA H200"] == counts["NVIDIA H100"] == (1, 0)
    assert counts["cpu"] == (0, 1)


@pytest.mark.thorough
def test_the_script_for_slurm_starts_a_worker(tmp_path: Path, bin_folder: Path) -> None:
    database = str(tmp_path / "fleet.db")
    JobQueue.open(database).close()
    assert f"sbatch {SLURM.relative_to(ROOT)}" in commands()
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", SLURM.read_text(), re.MULTILINE))
    assert (options["gpus"], options["signal"].split("@")[0]) == ("1", "TERM")
    done = run([str(Path("/bin/bash")), str(SLURM)], bin_folder, database)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "left after 0 jobs"), done.stderr


@pytest.mark.thorough
def test_the_job_for_kubernetes_starts_a_worker(tmp_path: Path, bin_folder: Path) -> None:
    database = str(tmp_path / "fleet.db")
    with JobQueue.open(database) as queue:
        queue_squares(queue, [64])
    manifest = yaml.safe_load(KUBERNETES.read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("batch/v1", "Job")
    pod = manifest["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}
    (variable,) = container["env"]
    assert variable["name"] == "KERNEL_REGISTRY_DB"
    secret = variable["valueFrom"]["secretKeyRef"]
    (create,) = [one for one in commands() if "create secret" in one]
    assert f"generic {secret['name']} --from-literal={secret['key']}=" in create
    done = run([*container["command"], "--device", "cpu"], bin_folder, database)
    assert done.returncode == 2
    assert "plugin repeated.py" in done.stderr  # which this image does not have


def test_the_files_of_the_guide_are_there_and_no_option_is_misspelt() -> None:
    for path in re.findall(r"\]\((fleet/[\w.]+)\)", PAGE.read_text()):
        assert (PAGE.parent / path).is_file(), path
    assert subprocess.run(["/bin/bash", "-n", SLURM], check=False).returncode == 0
