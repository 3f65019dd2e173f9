"""Systems other than Linux, simulated in processes without the modules and functions that these do not have."""

from __future__ import annotations

import pytest

from . import fresh
from .tiers import one_of_each

MISSING = {
    "Windows": (
        ["fcntl", "resource", "pwd", "grp", "termios", "triton"],
        "register_at_fork sysconf getuid geteuid getgid fork killpg setsid getpgid pipe2 mkfifo fchmod uname"
        " sched_getaffinity sched_setaffinity O_CLOEXEC O_NOFOLLOW O_NONBLOCK O_DIRECTORY",
        "SIGKILL SIGCHLD SIGHUP SIGALRM",
    ),
    "macOS": (["triton"], "pipe2 sched_getaffinity sched_setaffinity", ""),
}

LACKING = """
import os, signal, sys, warnings

modules, functions, signals = {modules!r}, {functions!r}.split(), {signals!r}.split()

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in modules:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

# what others have imported by now may go on using it
import multiprocessing, subprocess, tempfile, platformdirs, sqlalchemy, sqlite3, yaml, torch
assert "triton" not in sys.modules
for name in modules:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Absent())
for name in functions:
    delattr(os, name)
for name in signals:
    delattr(signal, name)
"""


def lacking(system: str) -> str:
    modules, functions, signals = MISSING[system]
    return LACKING.format(modules=modules, functions=functions, signals=signals)


@pytest.mark.parametrize("system", one_of_each(MISSING))
def test_calls_run_and_say_at_most_one_thing(system: str) -> None:
    code = """
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import registry, registry.calls
    for rows in (4, 4, 5):
        x = torch.randn(rows, 8)
        assert torch.allclose(registry.call("softmax", x), torch.softmax(x, -1), atol=1e-6)
    w = registry.quantize(torch.randn(64, 128).bfloat16(), bits=4, group_size=64)
    assert registry.call("gemm_int4", torch.randn(2, 128).bfloat16(), w).shape == (2, 64)
    with registry.using(softmax="torch.native"):
        registry.call("softmax", x)
    print(registry.explain("softmax", x).step, "triton" in sys.modules)
    assert {one.name for one in registry.implementations("softmax")} >= {"torch.native"}
    print([one.fault for one in registry.plugins() if one.fault])
    from registry.cli.checks import plugin_checks
    assert "fault" not in {check.state for check in plugin_checks()}
print(len(seen) <= 1, [str(one.message) for one in seen])
"""
    done = fresh.run("-c", lacking(system) + code)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "default False"
    assert lines[1] == "['it needs triton, which is not installed']"
    assert lines[2].startswith("True"), lines[2]


@pytest.mark.parametrize("system", one_of_each(MISSING))
@pytest.mark.thorough
def test_what_tunes_is_imported_and_says_what_it_needs(system: str) -> None:
    code = """
import importlib, pkgutil, registry, tuning_db
# what integrates with Triton or with a library that this system's Python cannot import needs what it is for
elsewhere = "registry.backends.triton", "registry.fleet.on_ray.", "registry.integrations."
def cannot(name):
    assert name.startswith(elsewhere), name
for package in (registry, tuning_db):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".", onerror=cannot):
        if not module.name.startswith(elsewhere):
            importlib.import_module(module.name)
if not hasattr(os, "killpg"):
    try:
        registry.tune("square", [{"n": 4096, "dtype": "float32"}], device="cpu")
    except registry.RegistryError as fault:
        print(fault.message)
print(registry.Device.of("cpu").memory_bytes >= 0)
"""
    done = fresh.run("-c", lacking(system) + code)
    assert done.returncode == 0, done.stderr
    *told, memory = done.stdout.splitlines()
    assert memory == "True"
    assert len(told) == (system == "Windows")
    assert all("tune needs a POSIX system" in line for line in told)


@pytest.mark.parametrize("system", one_of_each(MISSING))
def test_a_recording_and_a_database_are_written_and_read(system: str, tmp_path: object) -> None:
    code = """
import registry
from pathlib import Path
from tuning_db import Store
folder = Path(sys.argv[1])
with registry.record(folder / "calls.yaml"):
    registry.call("softmax", torch.randn(4, 8))
print("rows: 4" in (folder / "calls.yaml").read_text())
with Store.open(folder / "tuning.db") as store:
    print(store.statistics().winners)
registry.configure(database=folder / "tuning.db")
registry.call("softmax", torch.randn(4, 8))
"""
    done = fresh.run("-c", lacking(system) + code, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True", "0"]
