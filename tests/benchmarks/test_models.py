"""The benchmark of models runs in the forms that a CPU has, and a form that fails is a row that says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.models import __main__ as models

OPTIONS = ["--smoke", "--layers", "1", "--batches", "1", "--steps", "1"]


def test_every_way_has_a_time_and_its_ratio_to_plain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [*OPTIONS, "--forms", "eager", "prefill", "--ways", "plain", "int4", "--write", str(tmp_path)]
    rows = models.main(given)
    assert [(row.form, row.way) for row in rows] == [
        ("eager", "plain"), ("eager", "int4"), ("prefill", "plain"), ("prefill", "int4"),
    ]  # fmt: skip
    assert all(row.ms and row.ratio and not row.fault for row in rows)
    assert json.loads((tmp_path / "models.json").read_text())["rows"][1]["way"] == "int4"
    assert models.shown(rows[1]) in (tmp_path / "models.txt").read_text()
    assert models.shown(rows[1]) in capsys.readouterr().out


def test_a_form_that_fails_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.Decoding, "_captured", lambda *_: 1 / 0)
    rows = models.main([*OPTIONS, "--forms", "graph", "eager", "--ways", "plain"])
    assert (rows[0].ms, rows[0].fault) == (None, "ZeroDivisionError: division by zero")
    assert rows[1].ms
