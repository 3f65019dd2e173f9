"""The benchmark of models runs in the forms that a CPU has, and a form that fails is a row that says why."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from benchmarks.models.timing import Deadline

if TYPE_CHECKING:  # see late_imports
    from benchmarks.models import __main__ as models
    from benchmarks.models import decoding, entrants, peers, table

pytestmark = pytest.mark.usefixtures("late_imports", "without_cpp_kernels")

OPTIONS = ["--smoke", "--layers", "1", "--batches", "1", "--steps", "1"]


@pytest.mark.thorough
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
    monkeypatch.setattr(decoding.Decoding, "_captured", lambda *_: 1 / 0)
    rows = models.main([*OPTIONS, "--forms", "graph", "eager", "--ways", "plain"])
    assert (rows[0].ms, rows[0].fault) == (None, "ZeroDivisionError: division by zero")
    assert rows[1].ms


def test_a_peer_that_is_not_installed_is_a_row_that_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "gemlite.core", None)
    rows = models.main([*OPTIONS, "--forms", "eager", "--ways", "plain,int4,gemlite+head"])
    assert [(row.way, row.ms is None, row.off is None) for row in rows] == [
        ("plain", False, False), ("int4", False, False), ("gemlite+head", True, True),
    ]  # fmt: skip
    assert rows[0].off == 0.0 < rows[1].off < 0.5  # type: ignore[operator]
    assert rows[2].fault.endswith("pip install gemlite")
    assert capsys.readouterr().out.rstrip().endswith(f"gemlite+head: {rows[2].fault}")


@pytest.mark.thorough
def test_ways_have_processes_of_their_own() -> None:
    given = [*OPTIONS, "--forms", "eager", "graph", "--ways", "plain,int4", "--processes"]
    rows = models.main(given)
    assert [(row.form, row.way, row.ms is None) for row in rows] == [
        ("eager", "plain", False), ("eager", "int4", False), ("graph", "plain", True), ("graph", "int4", True),
    ]  # fmt: skip
    assert rows[1].ratio
    assert rows[1].off
    assert rows[3].fault


@pytest.mark.thorough
def test_a_process_that_has_ended_says_so() -> None:
    one = entrants.InWorker("plain", entrants.ModelSizes("llama", 1, torch.device("cpu"), small=True))
    one._process.kill()
    one.ask("build")
    with pytest.raises(entrants.EntrantError, match="ended with exit code -9"):
        one.answer()
    one.close()


@pytest.mark.thorough
def test_experts_are_measured_dense_and_packed() -> None:
    rows = models.main([*OPTIONS, "--model", "mixtral", "--forms", "eager", "--ways", "plain,apply,int4"])
    assert [row.fault for row in rows] == [""] * 3


@pytest.mark.parametrize(
    "given",
    [["--ways", "int3"], ["--ways", "plain+head"], ["--forms", "eager,fast"], ["--batches", "1,x"], ["--batches", "0"]],
)
def test_what_it_does_not_know_is_refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        models.parsed(given)
    assert "error: argument" in capsys.readouterr().err


def test_caches_have_room_for_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        models.parsed(["--context", "512", "--filled", "512"])
    assert "--filled 512 leaves no room for a token in --context 512" in capsys.readouterr().err


def test_lists_have_spaces_or_commas() -> None:
    given = models.parsed(["--batches", "1,4", "16", "--ways", "plain", "torchao,torchao-fp8+head"])
    assert given.batches == [1, 4, 16]
    assert given.ways == ["plain", "torchao", "torchao-fp8+head"]
    assert given.forms == ["eager", "graph", "compile", "reduce-overhead", "prefill"]


def test_a_peers_product_stands_for_the_layer_with_its_bias() -> None:
    linear, x = torch.nn.Linear(8, 6), torch.randn(2, 3, 8)
    instead = peers._Instead(lambda rows: rows @ linear.weight.t(), linear)
    torch.testing.assert_close(instead(x), linear(x))
    model: Any = torch.nn.Module()
    model.first, model.lm_head = torch.nn.Linear(8, 8), linear
    model.get_output_embeddings = lambda: linear
    assert [name for name, _ in peers._linears(model, False)] == ["first"]
    assert [name for name, _ in peers._linears(model, True)] == ["first", "lm_head"]


def test_nothing_begins_that_would_end_after_the_limit() -> None:
    assert not Deadline(None).is_near("compiled")
    deadline = Deadline(3600.0)
    assert not deadline.is_near("compiled")
    deadline.took("compiled", 4000.0)
    assert (deadline.is_near("compiled"), deadline.is_near("eager")) == (True, False)
    assert Deadline(0.0).is_near("eager")


def test_the_table_has_a_column_for_each_way_that_was_measured() -> None:
    rows = [
        {"form": "eager", "batch": 1, "way": "plain", "ms": 2.0, "ratio": 1.0, "fault": ""},
        {"form": "eager", "batch": 1, "way": "w8a8", "ms": 4.0, "ratio": 2.0, "fault": ""},
        {"form": "eager", "batch": 1, "way": "humming", "ms": None, "ratio": None, "fault": "no module"},
    ]
    assert table.table(rows).splitlines() == [
        "| what | sequences | transformers | Humming's int4 | w8a8 |",
        "| --- | --- | --- | --- | --- |",
        "| token, eager | 1 | 2.00 | - | 4.00 (0.50x) |",
    ]
    assert table.plain_table(rows).splitlines()[1:] == [
        "form   batch  plain  w8a8          humming", "eager  1      2.00   4.00 (0.50x)  -", "humming: no module",
    ]  # fmt: skip
