"""The implementation that an op's "× torch" compares with."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from registry.cli.display.winners_table import print_results
from registry.cli.stored import baselines_of
from registry.contracts import SQUARE
from registry.tuner.events import Result

PLUGIN = """
from dataclasses import replace
import registry
from registry.contracts import SQUARE
KERNEL_REGISTRY_API = 1
@registry.defines
def ops():
    schema = "baselined::square(Tensor x) -> Tensor y"
    return [replace(SQUARE, name="baselined::square", schema=schema, baseline="baselined.slow", backward=None)]
"""


def test_the_closing_table_compares_with_the_ops_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    problem = SQUARE.problem_of({"n": 8, "dtype": "float32"})
    result = Result(problem, "acme.fast", {}, 4.0, None, {"torch.native": 3.0, "acme.slow": 7.25}, "new")
    print_results([result, replace(result, baseline="acme.slow")])
    plain, named = capsys.readouterr().out.splitlines()[-2:]
    assert "3.00" in plain
    assert "7.25" in named
    assert "3.00" not in named


def test_stored_ops_are_compared_with_what_an_installed_plugin_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "baselined-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: baselined\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kernel_registry]\nbaselined = registry_baselined\n")
    (tmp_path / "registry_baselined.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert baselines_of(["softmax", "baselined::square", "gone::op"]) == {
            "softmax": "torch.native", "baselined::square": "baselined.slow", "gone::op": "torch.native"
        }  # fmt: skip
    finally:
        sys.modules.pop("registry_baselined", None)
