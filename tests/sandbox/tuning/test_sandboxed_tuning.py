"""A tuning run whose candidates are in sandboxes: the stranger's file runs nowhere else, and cheats win nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.cli import app
from registry.cli.tune import new_tune_app
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.errors import RegistryError
from registry.sandbox.tuning.sandboxed_run import sandboxed_catalog, sandboxed_options
from registry.sandbox.tuning.stand_in_catalog import StandInCatalog
from registry.tuner.events import Event, TrialDone
from registry.tuner.limits import Budget
from registry.tuner.options import TuneOptions
from registry.tuner.run import tune
from tests import fresh
from tuning_db import Store

from ..sandboxing import needs_bubblewrap
from .stranger import CHEATS, CHUNKS, plugin, was_run

CPU = Device.of("cpu")


@needs_bubblewrap
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_the_right_one_is_searched_and_cheats_are_refused(tmp_path: Path, few_blocks: None) -> None:
    trusted = Catalog()
    problem = trusted.op("square").problem_of({"n": 1 << 16, "dtype": "float32"})
    catalog = sandboxed_catalog([plugin(tmp_path, CHUNKS, CHEATS)], [problem], trusted, CPU)
    names = ["stranger.chunks", "stranger.zeroes", "stranger.searches", "torch.native"]
    events: list[Event] = []
    options = sandboxed_options(TuneOptions(Budget(trials=6), implementations=names), catalog, CPU)
    database = str(tmp_path / "sandboxed.db")
    (result,) = tune([problem], catalog=catalog, device=CPU, database=database, options=options, observer=events.append)
    tried: dict[str, set[str]] = {}
    for each in events:
        if isinstance(each, TrialDone):
            tried.setdefault(each.implementation, set()).add(each.status)
    assert tried == {
        "stranger.chunks": {"ok"}, "torch.native": {"ok"},
        "stranger.zeroes": {"wrong_result"}, "stranger.searches": {"wrong_result"},
    }  # fmt: skip
    assert result.implementation in {"stranger.chunks", "torch.native"}
    assert not was_run(tmp_path)
    with Store.open(database) as store:
        trials = store.trials(op="square")
    assert {one.candidate.implementation for one in trials} == set(names)
    right = [one for one in trials if one.status == "ok"]
    assert {one.details["limited_by"] for one in right} <= {
        "control group", "control group (systemd)", "resource limits"
    }  # fmt: skip


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = app.run(new_tune_app(), "tune", [*words])
    return code, capsys.readouterr().err


@pytest.fixture
def shapes(tmp_path: Path) -> str:
    file = tmp_path / "shapes.yaml"
    file.write_text("square: [{n: 1000, dtype: float32}]\n")
    return str(file)


def test_without_bubblewrap_there_is_an_error_and_no_run(
    tmp_path: Path, shapes: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = plugin(tmp_path, CHUNKS)
    monkeypatch.setenv("PATH", str(tmp_path))
    code, text = told(capsys, "--shapes", shapes, "--plugin", str(file), "--sandbox", "--device", "cpu")
    assert code == 2
    assert "bubblewrap (bwrap) is not installed" in text
    assert "apt-get install bubblewrap" in text
    assert not was_run(tmp_path)


@needs_bubblewrap
def test_what_does_not_go_with_sandboxes_is_told(
    tmp_path: Path, shapes: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_DB", str(tmp_path / "usual.db"))
    given = ["--shapes", shapes, "--sandbox", "--device", "cpu"]
    for more, fault in (
        (["--db", str(tmp_path / "usual.db")], "it is the usual database"),
        (["--fleet", "local"], "--sandbox with --fleet"),
        (["--plugin", str(tmp_path)], "a folder"),
    ):
        code, text = told(capsys, *given, *more)
        assert (code, fault in text) == (2, True), text
    with pytest.raises(RegistryError, match="--regime hot"):
        sandboxed_options(TuneOptions(regime="hot"), StandInCatalog(Catalog(), []), CPU)


INTERRUPTED_AT_THE_SEARCH = """
import os, signal, sys
import kernel_registry

class Interrupting:
    def __init__(self, told):
        self.told, self.begun = told, False
    def write(self, text):
        count = self.told.write(text)
        if "candidate" in text and not self.begun:
            self.begun = True
            os.kill(os.getpid(), signal.SIGINT)
        return count
    def __getattr__(self, name):
        return getattr(self.told, name)

sys.stdout = Interrupting(sys.stdout)
sys.argv[0] = "tune"
kernel_registry.tune()
"""


@needs_bubblewrap
@pytest.mark.thorough
@pytest.mark.parametrize("keeps", [False, True])
def test_ctrl_c_tells_whether_trials_are_kept(keeps: bool, tmp_path: Path, shapes: str) -> None:
    where = ["--db", str(tmp_path / "sandboxed.db")] if keeps else []
    command = ["--shapes", shapes, "--sandbox", "--device", "cpu", "--implementations", "torch.native", *where]
    done = fresh.run("-c", INTERRUPTED_AT_THE_SEARCH, *command, limit_s=120)
    assert done.returncode == 130, done.stderr
    assert ("every finished trial is kept" in done.stdout) is keeps
    assert ("no trial is kept, and the same command begins anew" in done.stdout) is not keeps
    assert ("results are not kept" in done.stdout) is not keeps
    assert (tmp_path / "sandboxed.db").exists() is keeps
