"""What a stale winner runs, told so that two revisions can be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learnt_defaults import GPUS
from benchmarks.winners import carried
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
