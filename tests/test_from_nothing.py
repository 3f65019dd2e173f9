"""From nothing to a winner: a package is made, installed, checked by its own tests, tuned, and explained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

import pytest

from registry.cli import app
from registry.cli.main import new_registry_app

from . import fresh

ROOT = Path(__file__).parents[1]


def ran(*command: str | Path, cwd: Path, **variables: str) -> str:
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False,
        timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of a new environment that holds this project's wheel; torch and others come from this one's."""
    ran(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    found = environment / "bin" / "python"
    installed(found, wheel)
    # what is in a folder named by a .pth file comes after the environment's own: there is no second copy of ours
    (site_of(found) / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return found


def site_of(python: Path) -> Path:
    """The folder of what is installed in the environment of an interpreter."""
    (found,) = python.parents[1].glob("lib/python*/site-packages")
    return found


def installed(python: Path, *what: str | Path) -> None:
    """Install for an interpreter what needs nothing that it lacks."""
    command = ("uv", "pip", "install", "--offline", "--no-deps", "--no-build-isolation", "--python", python, *what)
    ran(sys.executable, "-m", *command, cwd=python.parent)


IN_THE_ENVIRONMENT = """
import runpy, site, sys
_, python, folder, module, *words = sys.argv
before = list(sys.path)
sys.path.clear()
site.addsitedir(folder)
sys.path.extend(before)
sys.executable, sys.argv = python, [module, *words]
sys.dont_write_bytecode = False  # else each process compiles all of the environment's modules anew
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
"""``python -m module`` of an environment, in a process that has imported torch; children are the environment's."""


@pytest.mark.thorough
def test_a_new_plugin_is_checked_tuned_and_explained(
    python: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The way of a kernel's author, with a compiled C++ kernel; the seconds of each step are printed."""
    variables = {
        "PYTHONPATH": "",
        "OMP_NUM_THREADS": "1",
        "KERNEL_REGISTRY_DB": str(tmp_path / "tuning.db"),
        "KERNEL_REGISTRY_CACHE": str(tmp_path / "cache"),
    }
    seconds: dict[str, float] = {}

    def told(*words: str | Path) -> str:
        started = time.perf_counter()
        found = ran(python, "-m", "registry.cli.main", *words, cwd=tmp_path, **variables)
        seconds[str(words[0])] = time.perf_counter() - started
        return found

    told("new", "plugin", "acme", "--op", "square", "--backend", "cpp")
    started = time.perf_counter()
    installed(python, "-e", tmp_path / "registry-acme")
    seconds["pip install -e"] = time.perf_counter() - started

    checked = json.loads(told("check", "acme", "--json", "-"))
    verdicts = {each["name"]: each["verdict"] for each in checked["checks"]}
    assert (checked["ok"], verdicts) == (True, {"load": "passed", "numerics": "passed", "compile": "passed"})

    (tmp_path / "tiny.yaml").write_text("square: [{n: 4096, dtype: float32}]\n")
    rivals = ("--implementations", "acme.start,torch.native")  # torch.compile alone is half of the time
    told("tune", "--shapes", tmp_path / "tiny.yaml", "--device", "cpu", "--trials", "4", *rivals)
    explained = json.loads(told("explain", "square", "n=4096", "dtype=float32", "--device", "cpu", "--json"))
    assert explained["step"] == "exact"
    assert "acme.start" in json.dumps(explained)
    with capsys.disabled():
        steps = ", ".join(f"{step} {each:.1f} s" for step, each in seconds.items())
        print(f"\nfrom nothing in {sum(seconds.values()):.1f} s: {steps}")  # noqa: T201


# test_example_acme.py tunes what is in a package
@pytest.mark.parametrize("tuned", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_new_package_is_installed_checked_tuned_and_explained(
    python: Path, tmp_path: Path, tuned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {
        "PYTHONPATH": "",
        "OMP_NUM_THREADS": "1",
        "KERNEL_REGISTRY_DB": str(tmp_path / "tuning.db"),
        "KERNEL_REGISTRY_CACHE": str(tmp_path / "cache"),
    }

    def run(module: str, *words: str | Path, cwd: Path = tmp_path) -> str:
        environment, code = {**os.environ, **variables}, ("-c", IN_THE_ENVIRONMENT)
        done = fresh.run(*code, python, site_of(python), module, *words, env=environment, cwd=cwd)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def told(*words: str | Path) -> str:
        return run("registry.cli.main", *words)

    monkeypatch.chdir(tmp_path)
    assert app.run(new_registry_app(), "registry", ["new", "op", "acme::thing"]) == 0
    folder = tmp_path / "registry-acme"
    installed(python, "-e", folder)

    assert " passed" in run("pytest", "-q", "-p", "no:cacheprovider", cwd=folder)

    if tuned:
        (folder / "tiny.yaml").write_text("acme::thing: [{rows: 16, cols: 100, dtype: float32}]\n")
        told("tune", "--shapes", folder / "tiny.yaml", "--device", "cpu", "--trials", "1")

    problem = ("acme::thing", "rows=16", "cols=100", "dtype=float32")
    explained = json.loads(told("explain", *problem, "--device", "cpu", "--json"))
    assert (explained["step"], explained["implementation"]) == ("exact" if tuned else "default", "acme.torch")


@pytest.mark.thorough
def test_the_wheel_alone_does_everything(python: Path, tmp_path: Path) -> None:
    """Each command that a user needs, in a folder that has nothing of the repository."""
    where = tmp_path / "elsewhere"
    where.mkdir()
    variables = {
        "PYTHONPATH": "",
        "OMP_NUM_THREADS": "1",
        "KERNEL_REGISTRY_DB": str(where / "tuning.db"),
        "KERNEL_REGISTRY_CACHE": str(tmp_path / "cache"),
    }

    def told(*words: str | Path) -> str:
        return ran(python.with_name("registry"), *words, cwd=where, **variables)

    assert "Usage: registry" in told("--help")
    assert "Usage: tune" in ran(python.with_name("tune"), "--help", cwd=where, **variables)
    states = {check["name"]: check["state"] for check in json.loads(told("doctor", "--json"))}
    assert "FAULT" not in states.values(), states
    assert {"softmax", "gemm_int4"} <= {line.split(",")[0] for line in told("ops").splitlines()}
    told("tune", "--model", "llama-3.2-1b", "--batch", "1", "--context", "64", "--dry-run", "--device", "cpu")
    rivals = ("--implementations", "cpp.blocks,torch.native")
    told("tune", "--shapes", "configs/smoke.yaml", "--op", "square", "--device", "cpu", "--trials", "2", *rivals)
    assert "square" in told("results")
    told("report", "--out", "report.html", "--source")
    assert "Tuning report" in (where / "report.html").read_text()
    told("export", "all.jsonl")
    told("compare", "all.jsonl", "tuning.db", "--out", "changes.html")
    assert "Winners compared" in (where / "changes.html").read_text()
    told("new", "plugin", "acme", "--op", "softmax", "--backend", "torch")
    assert (where / "registry-acme" / "pyproject.toml").is_file()
    shipped = "from registry import shipped; import registry; print(registry.__file__)"
    assert str(tmp_path / "environment") in ran(python, "-c", shipped, cwd=where, **variables)
