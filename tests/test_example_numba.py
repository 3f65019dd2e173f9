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


# registry-acme is found and right as a package, and a package that `registry new` made in an environment of its own
@pytest.mark.thorough
def test_the_package_is_found_and_its_implementations_are_right(installed: Path, tmp_path: Path) -> None:
    environ = {"NUMBA_CACHE_DIR": str(tmp_path / "numba"), "PYTHONPATH": ""}
    said = json.loads(_run(installed / "python", "-c", FOUND, cwd=tmp_path, **environ))
    assert (said["ops"], said["fault"]) == (["numba::row_sum"], None)
    assert said["steps"] == [f"{op} {name} forced" for op, name in NAMES.items()]
    assert said["where"].startswith(str(installed.parent))


@pytest.mark.thorough
def test_the_package_is_used_like_one_in_the_box(installed: Path, tmp_path: Path) -> None:
    # with a device lock of its own, it waits for no other test that measures
    cache = str(tmp_path / "cache")
    environ = {"NUMBA_CACHE_DIR": str(tmp_path / "numba"), "PYTHONPATH": "", "KERNEL_REGISTRY_CACHE": cache}

    database = tmp_path / "tuning.db"
    shapes = tmp_path / "shapes.yaml"
    shapes.write_text(SHAPES)
    # one trial each for the defaults of torch and of numba; C++ and Inductor would each double the test's CPU time
    options: tuple[str | Path, ...] = ("--trials", "2", "--device", "cpu", "--db", database)
    options += ("--implementations", "torch.native,numba.rows")
    _run(installed / "tune", "--shapes", shapes, *options, cwd=tmp_path, **environ)

    said = json.loads(_run(installed / "python", "-c", USED, installed / "registry", database, cwd=tmp_path, **environ))
    (report,) = [plugin for plugin in said["plugins"] if plugin["name"] == "numba"]
    assert (report["distribution"], report["version"], report["api_version"]) == ("registry-numba", "0.1.0", 1)
    assert report["ops"] == ["numba::row_sum"]
    assert "softmax/numba.rows" in report["implementations"]
    assert not report["fault"]

    right = {(trial["op"], trial["implementation"]) for trial in said["results"] if trial["status"] == "ok"}
    for op, name in NAMES.items():
        assert (op, name) in right
        # in an op of the box it had rivals: nothing was left to it
        assert "::" in op or (op, "torch.native") in right

    assert said["steps"] == [f"{op} exact {name} forced" for op, name in NAMES.items()]
    assert said["where"].startswith(str(installed.parent))


NAMES = {"numba::row_sum": "numba.rows", "softmax": "numba.rows"}

SHAPES = """
numba::row_sum:
  - {rows: 16, cols: 64, dtype: float32}
softmax:
  - {rows: 4, cols: 128, dtype: float32}
"""

FOUND = f"""
import json, registry, torch
(plugin,) = [plugin for plugin in registry.plugins() if plugin.name == "numba"]
steps = []
for op, name in {NAMES!r}.items():
    x = torch.randn(4, 128)
    with registry.using(**{{op: name}}):
        torch.testing.assert_close(registry.call(op, x), x.sum(-1) if "::" in op else x.softmax(-1))
        told = registry.explain(op, x)
    steps.append(f"{{op}} {{told.implementation}} {{told.step}}")
fault = str(plugin.fault) if plugin.fault else None
print(json.dumps({{"ops": list(plugin.ops), "fault": fault, "steps": steps, "where": registry.__file__}}))
"""

# one process for the script ``registry``, twice, and for calls: each would import torch and numba
USED = f"""
import contextlib, io, json, runpy, sys

def told(*words):
    sys.argv[:] = [script, *words, "--json"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as ended:
            assert not ended.code, ended.code
    return json.loads(said.getvalue())

script, database = sys.argv[1:]
plugins, results = told("plugins"), told("results", "--trials", "--db", database)
import registry, torch
registry.configure(database=database)
calls = {{
    "numba::row_sum": (torch.randn(16, 64), lambda x: x.sum(-1)),
    "softmax": (torch.randn(4, 128), lambda x: torch.softmax(x, -1)),
    "square": (torch.randn(512), torch.square),
}}
steps = []
for op, name in {NAMES!r}.items():
    x, expected = calls[op]
    torch.testing.assert_close(registry.call(op, x), expected(x))
    won = registry.explain(op, x)
    with registry.using(**{{op: name}}):
        torch.testing.assert_close(registry.call(op, x), expected(x))
        forced = registry.explain(op, x)
    steps.append(f"{{op}} {{won.step}} {{forced.implementation}} {{forced.step}}")
print(json.dumps({{"plugins": plugins, "results": results, "steps": steps, "where": registry.__file__}}))
"""

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


@pytest.mark.thorough
def test_its_cuda_kernels_are_right_in_numbas_simulator(tmp_path: Path) -> None:
    environ = {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(EXAMPLE)}
    _run(sys.executable, "-W", "error", "-c", SIMULATED, cwd=tmp_path, **environ)
