"""What a stale winner runs, told so that two revisions can be compared."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learnt_defaults import GPUS
from benchmarks.winners import carried
from benchmarks.winners.reachable_code import reachable_code
from registry.discovery.catalog import Catalog

ROOT = Path(__file__).parents[2]
DIMS = {"m": 64, "n": 256, "k": 512, "group_size": 128, "bits": 4, "symmetric": False, "dtype": "bfloat16"}


def decision(catalog: Catalog, **other: Any) -> dict[str, Any]:
    op = catalog.op("gemm_int4")
    (one,) = (each for each in catalog.implementations("gemm_int4") if each.name == "cuda.wgmma")
    config = dict(one.default(op.problem_of(DIMS), GPUS["h200"]))
    found = {"implementation": "cuda.wgmma", "config": {**config, **other}, "fingerprint": one.fingerprint()}
    return {"uid": "1", "problem": {"op": "gemm_int4", "dims": DIMS}, "candidate": found}


def test_what_runs_is_told_alike_until_a_launch_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog()
    one = decision(catalog)
    fingerprint, runs = carried.what_runs(one, catalog, "h200")
    assert fingerprint == one["candidate"]["fingerprint"]
    assert runs
    assert carried.what_runs(one, catalog, "h200") == (fingerprint, runs)
    other = 3 if one["candidate"]["config"]["stages"] != 3 else 4
    assert carried.what_runs(decision(catalog, stages=other), catalog, "h200")[1] != runs
    monkeypatch.setattr(carried, "prepared", lambda *_: ["other bits"])
    assert carried.what_runs(one, catalog, "h200")[1] != runs


def test_a_winner_of_other_sources_is_stale_and_one_of_a_missing_library_is_not() -> None:
    catalog = Catalog()
    one = decision(catalog)
    assert carried.holds(one, catalog)
    one["candidate"]["fingerprint"] = "0" * 64
    assert not carried.holds(one, catalog)
    one["candidate"]["implementation"] = "humming.tiles"
    assert carried.holds(one, catalog)


@pytest.mark.thorough
def test_a_winner_that_the_former_revision_did_not_measure_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = decision(Catalog())
    one["candidate"]["fingerprint"] = "0" * 64
    records = [{"kind": "header"}, {"kind": "decision", "decision": one}, {"kind": "winner", "decision": "1"}]
    given, written = tmp_path / "winners.jsonl", tmp_path / "written.jsonl"
    given.write_text("".join(json.dumps(each) + "\n" for each in records))
    words = ["--before", str(ROOT), "--winners", str(given), "--gpu", "h200", "--write", str(written)]
    carried.main(words)
    assert "left out: gemm_int4 cuda.wgmma m=64" in capsys.readouterr().out
    assert [json.loads(line)["kind"] for line in written.read_text().splitlines()] == ["header"]


HELPERS = """
SCALE = 2.0
UNREAD = 1
def scaled(x):
    return x * SCALE
def unused(x):
    return x
class Call:
    @property
    def twice(self):
        return 2
"""
METHODS = """
from registry.implementation import Implementation
from . import helpers
from .helpers import Call
class Scales(Implementation):
    op, name = "square", "told.scales"
    def unsupported(self, problem, device):
        return ["never"]
    def bind(self, problem, config, device, built):
        def run(outputs, arguments, scratch):
            return helpers.scaled(arguments[0]) * Call().twice
        return run
"""


@pytest.mark.parametrize(
    ("former", "latter", "equal"),
    [
        ("x * SCALE", "x * SCALE * SCALE", False),
        ("SCALE = 2.0", "SCALE = -2.0", False),
        ("return 2", "return 3", False),
        ("arguments[0])", "arguments[1])", False),
        ("    return x\n", "    return x + 1\n", True),
        ("UNREAD = 1", "UNREAD = 2", True),
        ('["never"]', '["at no time"]', True),
    ],
    ids=str,
)
def test_code_that_an_implementation_reaches_is_told_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, former: str, latter: str, equal: bool
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    told = []
    for package, change in (("told", former), ("told_again", latter)):
        folder = tmp_path / package
        folder.mkdir()
        (folder / "__init__.py").touch()
        for name, text in (("helpers", HELPERS), ("methods", METHODS)):
            (folder / f"{name}.py").write_text(text.replace(former, change))
        found = importlib.import_module(f"{package}.methods").Scales()
        told.append("\n".join(reachable_code(found)).replace(package, "told"))
        for name in ("", ".helpers", ".methods"):
            del sys.modules[f"{package}{name}"]
    assert "scaled" in told[0]
    assert (told[0] == told[1]) is equal
