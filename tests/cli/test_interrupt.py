"""Ctrl-C, and SIGTERM to ``tune``: what was measured is kept, the command says so and ends with 130."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import kernel_registry
from tuning_db import Store

from .. import fresh

INTERRUPTED_WHILE_IMPORTING = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv = ["{program}", *{arguments}]
import kernel_registry
kernel_registry.{program}()
"""


@pytest.mark.parametrize(
    ("program", "module", "arguments"),
    [
        ("tune", "typer", ["--help"]),
        ("registry", "typer", ["--help"]),
        ("tune", "registry.cli.options", ["--help"]),
        ("registry", "registry.cli.options", ["--help"]),
        ("registry", "torch", ["ops"]),
    ],
)
def test_ctrl_c_while_the_program_is_imported_is_one_line(program: str, module: str, arguments: list[str]) -> None:
    code = INTERRUPTED_WHILE_IMPORTING.format(program=program, module=module, arguments=arguments)
    if module in {"torch", "typer"}:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    else:
        done = fresh.run("-c", code, limit_s=120)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"{program}: interrupted\n")


THREE_TIMES = """
import os, signal, sys
import kernel_registry
from registry.cli import app
told = app._tell
def interrupted(text):
    os.kill(os.getpid(), signal.SIGINT)
    told(text)
app._tell = interrupted
from registry.cli import ops
def first(*_, **__):
    os.kill(os.getpid(), signal.SIGINT)
ops.text.print_table = ops.text.say = ops.text.console = first
sys.argv = ["registry", "ops"]
kernel_registry.registry()
"""


def test_ctrl_c_while_ctrl_c_is_told_is_no_traceback() -> None:
    done = fresh.run("-c", THREE_TIMES, limit_s=120)
    assert (done.returncode, done.stdout) == (130, "")
    assert "Traceback" not in done.stderr


INTERRUPTED_AT_THE_END = """
import atexit, os, signal, sys
import kernel_registry
atexit.register(lambda: [os.kill(os.getpid(), signal.SIGINT) for _ in range(3)] and sys.stderr.write("ended"))
sys.argv = ["{program}", {option!r}]
kernel_registry.{program}()
"""


@pytest.mark.parametrize(("program", "option", "code"), [("tune", "--help", 0), ("registry", "--absent", 2)])
def test_ctrl_c_while_the_program_ends_changes_nothing(program: str, option: str, code: int) -> None:
    done = fresh.run("-c", INTERRUPTED_AT_THE_END.format(program=program, option=option), limit_s=120)
    assert done.returncode == code
    assert done.stderr.endswith("ended")
    assert "Traceback" not in done.stderr


def test_the_installed_scripts_start_where_ctrl_c_is_told() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    started = {name: pkgutil.resolve_name(place) for name, place in project["scripts"].items()}
    assert started == {"tune": kernel_registry.tune, "registry": kernel_registry.registry}


INTERRUPTED_AT_A_TRIAL = """
import os, signal, sys
import kernel_registry

class Interrupting:
    def __init__(self, told):
        self.told, self.tried = told, 0
    def write(self, text):
        count = self.told.write(text)
        self.tried += '"event": "trial_done"' in text
        if self.tried == 1 and text.endswith("\\n"):
            self.tried += 1
            os.kill(os.getpid(), signal.{signal})
        return count
    def __getattr__(self, name):
        return getattr(self.told, name)

sys.stdout = Interrupting(sys.stdout)
sys.argv[0] = "tune"
kernel_registry.tune()
"""


# a run that Ctrl-C interrupts keeps what it measured, too: tests/tuner/test_run.py; both signals raise the same there
@pytest.mark.parametrize("told_by", [pytest.param("SIGINT", marks=pytest.mark.thorough), "SIGTERM"])
def test_ctrl_c_keeps_the_trials(tmp_path: Path, shapes: Path, own_lock: None, told_by: str) -> None:
    command = ["--shapes", shapes, "--device", "cpu", "--json", "--db", tmp_path / "kept.db"]
    # one that is tried at once, and one that is still being compiled then: its cache is empty
    command += ["--implementations", "torch.native,cpp.blocks"]
    done = fresh.run("-c", INTERRUPTED_AT_A_TRIAL.format(signal=told_by), *command, limit_s=120)
    assert done.returncode == 130, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in told].count("trial_done") >= 1
    ended, results = told[-2:]
    assert ended["event"] == "run_ended"
    assert ended["interrupted"] is True
    assert results == {"event": "results", "results": []}
    with Store.open(tmp_path / "kept.db", create=False) as store:
        assert len(store.trials()) >= 1
        assert store.winners() == []
