"""What a stale winner runs, told so that two revisions can be compared."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learnt_defaults import GPUS
from benchmarks.winners import carried
from benchmarks.winners import reachable_code as reachable
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
from functools import lru_cache, partial
from .far import deep as further
SCALE = 2.0
UNREAD = 1
KINDS = {"one", "two"}
TABLE = {"relu": abs}
halved = partial(round, ndigits=1)
def scaled(x, factor=4.0):
    '''Scale.'''
    return further(x * SCALE * factor, base=2)
def late(x):
    return x + 7
def unused(x):
    return x
@lru_cache
def kept(x, y):
    return x - y
class Base:
    def added(self):
        return 5
class Call(Base):
    @property
    def twice(self):
        return 2
"""
FAR = """
SCALE = 3.0
def deep(x, base):
    return x ** base * SCALE
"""
METHODS = """
from registry.implementation import Implementation
from . import helpers
from .helpers import Call
SCALE = 9.0
class Scales(Implementation):
    op, name = "square", "told.scales"
    def __init__(self):
        self.power = 6
    @property
    def third(self):
        return 3
    def unsupported(self, problem, device):
        return ["never"]
    def bind(self, problem, config, device, built):
        from .helpers import late
        def run(outputs, arguments, scratch):
            table = helpers.TABLE, helpers.KINDS, helpers.halved
            return helpers.scaled(arguments[0]) * Call().twice * late(SCALE) * helpers.kept(1, y=2)
        return run
"""
PACKAGE = {"helpers": HELPERS, "far": FAR, "methods": METHODS}


def told(folder: Path, package: str, former: str = "", latter: str = "") -> list[str]:
    """What is told of the package with a change, under the name ``told``."""
    (folder / package).mkdir()
    (folder / package / "__init__.py").touch()
    for name, text in PACKAGE.items():
        (folder / package / f"{name}.py").write_text(text.replace(former, latter) if former else text)
    try:
        found = importlib.import_module(f"{package}.methods").Scales()
        return [line.replace(package, "told") for line in reachable_code(found)]
    finally:
        for name in ("", *(f".{each}" for each in PACKAGE)):
            sys.modules.pop(f"{package}{name}", None)
        for function in (reachable._statements, reachable._is_module):
            function.cache_clear()


@pytest.mark.parametrize(
    ("former", "latter", "equal"),
    [
        ("x * SCALE * factor", "x * factor * SCALE", False),
        ("SCALE = 2.0", "SCALE = -2.0", False),
        ("SCALE = 3.0", "SCALE = 4.0", False),
        ("SCALE = 9.0", "SCALE = 8.0", False),
        ("return 2", "return 3", False),
        ("return 5", "return 6", False),
        ("return 3", "return 4", False),
        ("power = 6", "power = 5", False),
        ("arguments[0])", "arguments[1])", False),
        ("x ** base", "base ** x", False),
        ("def kept(x, y)", "def kept(y, x)", False),
        ("kept(1, y=2)", "kept(1, x=2)", False),
        ("factor=4.0", "factor=5.0", False),
        ("x + 7", "x + 8", False),
        ("ndigits=1", "ndigits=2", False),
        ('{"relu": abs}', '{"relu": min}', False),
        ("@lru_cache\n", "", False),
        ("    return x\n", "    return x + 1\n", True),
        ("UNREAD = 1", "UNREAD = 2", True),
        ("Scale.", "Scale it.", True),
        ("lru_cache, partial", "cache, lru_cache, partial", True),
        ('["never"]', '["at no time"]', True),
    ],
    ids=str,
)
def test_code_that_an_implementation_reaches_is_told_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, former: str, latter: str, equal: bool
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    assert any(former in text for text in PACKAGE.values())
    assert (told(tmp_path, "told") == told(tmp_path, "told_again", former, latter)) is equal


@pytest.mark.parametrize(
    ("former", "latter", "why"),
    [
        ("helpers.TABLE, ", "helpers, ", "hands on the module helpers"),
        ("from .helpers import Call", "from .helpers import *", r"import \*"),
        ("power = 6", "power = object()", "told.scales holds"),
        ("helpers.TABLE, ", "helpers.missing, ", "binds no missing"),
    ],
    ids=str,
)
def test_code_that_cannot_be_followed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, former: str, latter: str, why: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(reachable.UntoldError, match=why):
        told(tmp_path, "told", former, latter)


@pytest.mark.thorough
def test_what_is_told_of_our_own_does_not_depend_on_the_process() -> None:
    ops = ("linear", "gelu", "square")
    asking = (
        "from registry.discovery.catalog import Catalog; from benchmarks.winners.reachable_code import reachable_code;"
        f"print([reachable_code(Catalog().implementation(op, 'torch.native')) for op in {ops}])"
    )
    elsewhere = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", asking],
        env={**os.environ, "PYTHONHASHSEED": "1"}, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    here = [reachable_code(Catalog().implementation(op, "torch.native")) for op in ops]
    assert elsewhere.strip() == str(here)
    assert "addmm" in elsewhere


def test_a_candidate_that_its_implementation_refuses_today_is_not_carried_over(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog()
    problem = {"op": "square", "dims": {"n": 64, "dtype": "float32"}}

    def runs(config: dict[str, int]) -> str:
        asked = {"problem": problem, "candidate": {"implementation": "torch.native", "config": config}}
        return carried.what_runs(asked, catalog, "h200")[1]

    assert runs({})
    assert not runs({"BLOCK": 3})
    monkeypatch.setattr(type(catalog.implementation("square", "torch.native")), "unsupported", lambda *_: ["never"])
    assert not runs({})
