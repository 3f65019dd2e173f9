"""A third party's package, built, installed beside this one, found, tuned and dispatched to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "registry-numba"


def _run(*command: str | Path, cwd: Path, **environ: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts' folder of a fresh environment that holds both wheels; torch and numba come from this one's."""
    folder = tmp_path_factory.mktemp("third-party")
    for project in (ROOT, EXAMPLE):
        _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=project)
    wheels = sorted(folder.glob("*.whl"))
    assert [wheel.name.split("-")[0] for wheel in wheels] == ["kernel_registry", "registry_numba"]
    environment = folder / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    scripts = environment / "bin"
    install: tuple[str | Path, ...] = (
        "uv",
        "pip",
        "install",
        "--offline",
        "--no-deps",
        "--python",
        scripts / "python",
        *wheels,
    )
    _run(sys.executable, "-m", *install, cwd=folder)
    site = Path(
        _run(scripts / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    )
    # what is in a folder named by a .pth file comes after the environment's own: there is no second copy of ours
    (site / "heavy.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return scripts


def test_the_package_is_used_like_one_in_the_box(installed: Path, tmp_path: Path) -> None:
    environ = {"NUMBA_CACHE_DIR": str(tmp_path / "numba"), "PYTHONPATH": ""}

    (report,) = [
        plugin
        for plugin in json.loads(_run(installed / "registry", "plugins", "--json", cwd=tmp_path, **environ))
        if plugin["name"] == "numba"
    ]
    assert (report["distribution"], report["version"], report["api_version"]) == ("registry-numba", "0.1.0", 1)
    assert report["ops"] == ["numba::row_sum"]
    assert "softmax/numba.rows" in report["implementations"]
    assert not report["fault"]

    shapes = tmp_path / "shapes.yaml"
    shapes.write_text(
        "numba::row_sum:\n  - {rows: 16, cols: 64, dtype: float32}\n"
        "softmax:\n  - {rows: 4, cols: 128, dtype: float32}\n"
    )
    database = tmp_path / "tuning.db"
    options: tuple[str | Path, ...] = (
        "--implementations",
        "numba.rows",
        "--trials",
        "3",
        "--device",
        "cpu",
        "--db",
        database,
        "--json",
    )
    chosen: tuple[str | Path, ...] = ("--op", "numba::row_sum", "--op", "softmax", "--shapes", shapes)
    _run(installed / "tune", *chosen, *options, cwd=tmp_path, **environ)

    code = """
import registry, torch
registry.configure(database="{database}")
x = torch.randn(16, 64)
torch.testing.assert_close(registry.call("numba::row_sum", x), x.sum(-1))
z = torch.randn(4, 128)
torch.testing.assert_close(registry.call("softmax", z), torch.softmax(z, -1))
for told in (registry.explain("numba::row_sum", x), registry.explain("softmax", z)):
    print(told.implementation, told.step)
print(registry.__file__)
"""
    said = _run(installed / "python", "-c", code.replace("{database}", str(database)), cwd=tmp_path, **environ)
    assert said.splitlines()[:2] == ["numba.rows exact", "numba.rows exact"]
    assert said.splitlines()[2].startswith(str(installed.parent))


SIMULATED = """
import numpy as np
from registry_numba import gpu_kernels
x = np.random.default_rng(0).standard_normal((3, 70)).astype(np.float32)
y = np.empty_like(x)
gpu_kernels.softmax[3, 64](x, y)
wide = np.exp(x.astype(np.float64))
np.testing.assert_allclose(y, wide / wide.sum(1, keepdims=True), rtol=1e-6)
z = np.empty(210, np.float32)
gpu_kernels.square[2, 64](x.ravel(), z)
np.testing.assert_array_equal(z, x.ravel() ** 2)
"""


def test_its_cuda_kernels_are_right_in_numbas_simulator(tmp_path: Path) -> None:
    environ = {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(EXAMPLE)}
    _run(sys.executable, "-W", "error", "-c", SIMULATED, cwd=tmp_path, **environ)
