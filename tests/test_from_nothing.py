"""From nothing to a winner: a package is made, installed, checked by its own tests, tuned, and explained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from . import fresh

ROOT = Path(__file__).parents[1]


def ran(*command: str | Path, cwd: Path, **variables: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False,
        timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of a new environment that sees this tree, and what is installed beside this interpreter."""
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    found = environment / "bin" / "python"
    site = Path(ran(found, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    (site / "others.pth").write_text(f"{ROOT}\n{ROOT / 'plugins'}\n{sysconfig.get_path('purelib')}\n")
    return found


def test_a_new_package_is_installed_checked_tuned_and_explained(python: Path, tmp_path: Path) -> None:
    variables = {
        "PYTHONPATH": "",
        "KERNEL_REGISTRY_DB": str(tmp_path / "tuning.db"),
        "KERNEL_REGISTRY_CACHE": str(tmp_path / "cache"),
    }
    program = (python, "-m", "registry.cli.main")
    # which needs nothing of the new environment
    made = fresh.run(*program[1:], "new", "op", "acme::thing", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    folder = tmp_path / "registry-acme"
    install = ("uv", "pip", "install", "--offline", "--no-deps", "--no-build-isolation", "--python", python)
    ran(sys.executable, "-m", *install, "-e", folder, cwd=tmp_path, **variables)

    ran(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=folder, **variables)

    (folder / "tiny.yaml").write_text("acme::thing: [{rows: 16, cols: 100, dtype: float32}]\n")
    tuning = ("tune", "--shapes", folder / "tiny.yaml", "--device", "cpu", "--trials", "1")
    ran(*program, *tuning, cwd=tmp_path, **variables)

    problem = ("acme::thing", "rows=16", "cols=100", "dtype=float32")
    told = json.loads(ran(*program, "explain", *problem, "--device", "cpu", "--json", cwd=tmp_path, **variables))
    assert (told["step"], told["implementation"]) == ("exact", "acme.torch")
