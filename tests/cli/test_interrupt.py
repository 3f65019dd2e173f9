"""Ctrl-C: what was measured is kept, the command says so and ends with 130."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from tuning_db import Store


def test_ctrl_c_keeps_the_trials(tmp_path: Path, shapes: Path) -> None:
    command = [sys.executable, "-m", "registry.cli.main", "tune", "--shapes", str(shapes), "--device", "cpu", "--json"]
    process = subprocess.Popen(
        [*command, "--db", str(tmp_path / "kept.db")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    told = []
    for line in process.stdout:
        told.append(json.loads(line))
        if told[-1]["event"] == "trial_done":
            process.send_signal(signal.SIGINT)
            break
    rest, errors = process.communicate(timeout=120)
    told += [json.loads(line) for line in rest.splitlines()]
    assert process.returncode == 130, errors
    ended, results = told[-2:]
    assert ended["event"] == "run_ended"
    assert ended["interrupted"] is True
    assert results == {"event": "results", "results": []}
    with Store.open(tmp_path / "kept.db", create=False) as store:
        assert len(store.trials()) >= 1
        assert store.winners() == []
