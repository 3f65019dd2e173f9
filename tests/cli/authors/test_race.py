"""``registry import-kernel`` and ``registry race``, as a person runs them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

PROBLEM = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.rand(16, 32)]

def get_init_inputs():
    return []
"""
NEW = "import torch\nimport torch.nn as nn\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        return {}\n"


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    file = tmp_path / "relu.py"
    file.write_text(PROBLEM)
    folder = tmp_path / "subs"
    folder.mkdir()
    (folder / "good.py").write_text(NEW.format("x.clamp(min=0)"))
    (folder / "copy.py").write_text(NEW.format("x.clone()"))
    (folder / "nothing.py").write_text("one = 1\n")
    return file


def test_import_kernel_writes_a_plugin_file(command: Callable[..., object], problem: Path, tmp_path: Path) -> None:
    out = tmp_path / "plugin.py"
    told = command("registry", "import-kernel", "--problem", problem, problem.parent / "subs", "--out", out)
    assert told.code == 1  # type: ignore[attr-defined]
    assert "nothing.py" in told.err  # type: ignore[attr-defined]
    assert "race.good" in out.read_text()


def test_what_is_raced_must_be_told_once(command: Callable[..., object], problem: Path) -> None:
    told = command("registry", "race", problem.parent / "subs")
    assert told.code == 2  # type: ignore[attr-defined]
    assert "--problem" in told.err  # type: ignore[attr-defined]


def test_a_budget_of_nothing_is_bad_input(command: Callable[..., object], problem: Path) -> None:
    for option in ((), ("--sandbox",)):
        told = command("registry", "race", "--problem", problem, problem.parent / "subs", "--budget", "0", *option)
        assert (told.code, "--budget 0: expected more than 0" in told.err) == (2, True)  # type: ignore[attr-defined]


@pytest.mark.thorough
def test_a_race_ranks_the_right_and_refuses_the_wrong(
    command: Callable[..., object], problem: Path, few_blocks: None, own_lock: None
) -> None:
    told = command("registry", "race", "--problem", problem, problem.parent / "subs", "--device", "cpu", "--json")
    standings = {one["label"]: one for one in json.loads(told.out)}  # type: ignore[attr-defined]
    assert told.code == 1  # type: ignore[attr-defined]
    assert standings["good.py"]["rank"] in {1, 2}
    assert standings["good.py"]["times_reference"] > 0
    assert standings["copy.py"]["status"] == "wrong_result"
    assert "signed inputs" in standings["copy.py"]["reason"]
    assert standings["nothing.py"]["status"] == "refused"
    assert "expected ModelNew, custom_kernel" in standings["nothing.py"]["reason"]
    assert standings["kernelbench.reference"]["status"] == "ok"


@pytest.mark.thorough
def test_an_op_in_the_box_is_raced_by_functions(
    command: Callable[..., object], tmp_path: Path, few_blocks: None, own_lock: None
) -> None:
    folder = tmp_path / "subs"
    folder.mkdir()
    (folder / "square.py").write_text("def square(x):\n    return x * x\n")
    (folder / "low.py").write_text("import torch\ndef square(x):\n    y = x.bfloat16()\n    return (y * y).float()\n")
    (folder / "inline.cpp").write_text("torch::Tensor square(torch::Tensor x) {\n  return x * x;\n}\n")
    shapes = tmp_path / "shapes.yaml"
    shapes.write_text("square:\n  - {n: 4096, dtype: float32}\n")
    told = command("registry", "race", "--op", "square", "--shapes", shapes, folder, "--device", "cpu", "--json")
    standings = {one["label"]: one for one in json.loads(told.out)}  # type: ignore[attr-defined]
    assert standings["square.py"]["rank"] > 0
    assert standings["inline.cpp"]["rank"] > 0
    assert standings["low.py"]["status"] == "wrong_result"
    assert standings["torch.native"]["rank"] > 0
