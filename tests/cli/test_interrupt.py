"""Ctrl-C and SIGTERM: what was measured is kept, the command says so and ends with 130."""

from __future__ import annotations

import inspect
import json
import os
import pkgutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, TextIO

import pytest

import kernel_registry
from tuning_db import Store

from .. import fresh
from .conftest import Command

INTERRUPTED_WHILE_IMPORTING = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.{signal})

sys.meta_path.insert(0, Interrupting())
sys.argv = ["{program}", *{arguments}]
import kernel_registry
kernel_registry.{program}()
"""


@pytest.mark.parametrize(
    ("program", "module", "arguments", "told_by"),
    [
        ("tune", "typer", ["--help"], "SIGINT"),
        ("registry", "typer", ["--help"], "SIGINT"),
        ("tune", "registry.cli.options", ["--help"], "SIGTERM"),
        ("registry", "registry.cli.options", ["--help"], "SIGTERM"),
        ("registry", "torch", ["ops"], "SIGINT"),
    ],
)
@pytest.mark.few(2)
def test_ctrl_c_while_the_program_is_imported_is_one_line(
    program: str, module: str, arguments: list[str], told_by: str
) -> None:
    code = INTERRUPTED_WHILE_IMPORTING.format(program=program, module=module, arguments=arguments, signal=told_by)
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


TERMINATED = """
import os, signal, sys, tempfile
from registry.cli import ops
def first(*_, **__):
    with tempfile.TemporaryDirectory() as folder:
        print(folder, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
ops.text.print_table = ops.text.say = ops.text.console = first
import kernel_registry
sys.argv = ["registry", "ops"]
kernel_registry.registry()
"""


def test_sigterm_leaves_no_temporary_folder_of_any_command() -> None:
    done = fresh.run("-c", TERMINATED, limit_s=120)
    assert (done.returncode, done.stderr) == (130, "registry: interrupted\n")
    assert not Path(done.stdout.strip()).exists()


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
@pytest.mark.few(1)
def test_ctrl_c_while_the_program_ends_changes_nothing(program: str, option: str, code: int) -> None:
    done = fresh.run("-c", INTERRUPTED_AT_THE_END.format(program=program, option=option), limit_s=120, taken_apart=True)
    assert done.returncode == code
    assert done.stderr.endswith("ended")
    assert "Traceback" not in done.stderr


def test_the_installed_scripts_start_where_ctrl_c_is_told() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    started = {name: pkgutil.resolve_name(place) for name, place in project["scripts"].items()}
    assert started == {"tune": kernel_registry.tune, "registry": kernel_registry.registry}


class InterruptedAtATrial:
    """Output during which Ctrl-C comes, once it tells of the first trial."""

    def __init__(self, told: TextIO) -> None:
        self._told = told
        self._tried = 0

    def write(self, text: str) -> int:
        count = self._told.write(text)
        self._tried += '"event": "trial_done"' in text
        if self._tried == 1 and text.endswith("\n"):
            self._tried += 1
            os.kill(os.getpid(), signal.SIGINT)
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._told, name)


def words_of(shapes: Path, database: Path) -> list[str | Path]:
    """A run of two implementations: one is tried at once, and one is still being compiled then: its cache is empty."""
    command = ["--shapes", shapes, "--device", "cpu", "--json", "--db", database]
    return [*command, "--implementations", "torch.native,cpp.blocks"]


def assert_kept(out: str, database: Path) -> None:
    told = [json.loads(line) for line in out.splitlines()]
    assert [event["event"] for event in told].count("trial_done") >= 1
    ended, results = told[-2:]
    assert ended["event"] == "run_ended"
    assert ended["interrupted"] is True
    assert results == {"event": "results", "results": []}
    with Store.open(database, create=False) as store:
        assert len(store.trials()) >= 1
        assert store.winners() == []


def test_ctrl_c_keeps_the_trials(
    command: Command, tmp_path: Path, shapes: Path, own_lock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a worker of a fleet that ran in this process has left its own way to hear it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", InterruptedAtATrial(sys.stdout))
            told = command("tune", *words_of(shapes, tmp_path / "kept.db"))
    finally:
        signal.signal(signal.SIGINT, before)
    assert told.code == 130, told.err
    assert_kept(told.out, tmp_path / "kept.db")


INTERRUPTED_AT_A_TRIAL = """
import os, signal, sys
from typing import Any, TextIO
import kernel_registry

INTERRUPTED

sys.stdout = InterruptedAtATrial(sys.stdout)
sys.argv[0] = "tune"
kernel_registry.tune()
"""


# that SIGTERM is a Ctrl-C is told above, too
@pytest.mark.thorough
@pytest.mark.parametrize("told_by", ["SIGINT", "SIGTERM"])
def test_a_program_that_is_interrupted_keeps_the_trials(
    tmp_path: Path, shapes: Path, own_lock: None, told_by: str
) -> None:
    interrupted = inspect.getsource(InterruptedAtATrial).replace("SIGINT", told_by)
    code = INTERRUPTED_AT_A_TRIAL.replace("INTERRUPTED", interrupted)
    done = fresh.run("-c", code, *words_of(shapes, tmp_path / "kept.db"), limit_s=120)
    assert done.returncode == 130, done.stderr
    assert_kept(done.stdout, tmp_path / "kept.db")
