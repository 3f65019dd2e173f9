"""``registry race --sandbox``: an error where there is no sandbox, and a race behind one where there is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sandbox.sandboxing import needs_bubblewrap


@pytest.fixture
def submission(tmp_path: Path) -> Path:
    """A submission that leaves a trace if it is run."""
    file = tmp_path / "square.py"
    file.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\ndef square(x):\n    return x * x\n")
    return file


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    file = tmp_path / "shapes.yaml"
    file.write_text("square:\n  - {n: 4096, dtype: float32}\n")
    return file


def test_without_bubblewrap_a_race_is_an_error(
    command: Callable[..., object], submission: Path, shapes: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    told = command("registry", "race", "--op", "square", "--shapes", shapes, submission, "--sandbox")
    assert told.code == 2  # type: ignore[attr-defined]
    assert "bubblewrap (bwrap) is not installed" in told.err  # type: ignore[attr-defined]
    assert "apt-get install bubblewrap" in told.err  # type: ignore[attr-defined]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("option", ["--plugin", "--db", "--traces"])
def test_what_would_run_or_keep_something_outside_does_not_go_with_it(
    command: Callable[..., object], submission: Path, shapes: Path, tmp_path: Path, option: str
) -> None:
    told = command(
        "registry", "race", "--op", "square", "--shapes", shapes, submission, "--sandbox", option, submission
    )  # fmt: skip
    assert told.code == 2  # type: ignore[attr-defined]
    assert f"{option} does not go with --sandbox" in told.err  # type: ignore[attr-defined]
    assert not (tmp_path / "ran").exists()


PROBLEM = """
import torch
import torch.nn as nn
from width import WIDTH

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width))

    def forward(self, x):
        return torch.relu(x) * self.scale

def get_inputs():
    return [torch.rand(64, WIDTH)]

def get_init_inputs():
    return [WIDTH]
"""
NEW = """
import os
import torch
import torch.nn as nn

class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width))

    def forward(self, x):
        {first}
        return {result}
"""
SHARES = "space = HELD.setdefault(x.shape, torch.empty_like(x)); torch.mul(x.clamp(min=0), self.scale, out=space)"
READS_THE_OTHERS = "open(os.path.join(os.path.dirname(__file__), 'good.py')).close()"


@needs_bubblewrap
@pytest.mark.thorough
def test_a_race_behind_bubblewrap_ranks_the_right_and_refuses_the_wrong(
    command: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_lock: None
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    problem, folder = tmp_path / "scaled_relu.py", tmp_path / "subs"
    problem.write_text(PROBLEM)
    (tmp_path / "width.py").write_text("WIDTH = 256\n")
    folder.mkdir()
    (folder / "good.py").write_text(NEW.format(first="pass", result="x.clamp(min=0) * self.scale"))
    (folder / "weights.py").write_text(NEW.format(first="pass", result="x.clamp(min=0) * torch.ones_like(self.scale)"))
    (folder / "thief.py").write_text(NEW.format(first=READS_THE_OTHERS, result="x.clamp(min=0) * self.scale"))
    (folder / "shares.py").write_text(NEW.format(first=SHARES, result="space.clone()") + "HELD = {}\n")
    (folder / "nothing.py").write_text("one = 1\n")
    (folder / "link.py").symlink_to(tmp_path / "of_another.py")
    (tmp_path / "of_another.py").write_text(NEW.format(first="pass", result="x.clamp(min=0) * self.scale"))
    told = command(
        "registry", "race", "--problem", problem, folder, "--sandbox", "--device", "cpu", "--json", "--budget", "0.3"
    )
    assert told.code == 1, told.err  # type: ignore[attr-defined]
    standings = {one["label"]: one for one in json.loads(told.out)}  # type: ignore[attr-defined]
    assert standings["good.py"]["rank"] > 0
    assert standings["good.py"]["times_reference"] > 0
    assert standings["kernelbench.reference"]["in_finals"]
    assert standings["weights.py"]["status"] == "wrong_result"
    assert "expected" in standings["weights.py"]["reason"]
    assert standings["thief.py"]["status"] == "error"
    assert "FileNotFoundError" in standings["thief.py"]["reason"]
    assert standings["shares.py"]["status"] == "wrong_result"
    assert "called by two threads at once" in standings["shares.py"]["reason"]
    assert standings["nothing.py"]["status"] == "refused"
    assert "a link to" in standings["of_another.py"]["reason"]
