"""The benchmark of training steps runs on a CPU, and a way that is not installed is a row that says so."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # see late_imports
    from transformers.models.llama import modeling_llama

    from benchmarks.models import training, training_ways
    from benchmarks.models.timing import ROUNDS

pytestmark = pytest.mark.usefixtures("late_imports")

OPTIONS = ["--smoke", "--layers", "1", "--batches", "2x16", "--steps", "1", "--forms", "eager"]


@pytest.mark.thorough
def test_every_way_has_a_time_and_the_same_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = training.main([*OPTIONS, "--ways", "plain", "apply", "--write", str(tmp_path)])
    assert [(row.form, row.batch, row.length, row.way) for row in rows] == [
        ("eager", 2, 16, "plain"), ("eager", 2, 16, "apply"),
    ]  # fmt: skip
    assert all(row.ms and row.ratio and row.loss and not row.fault for row in rows)
    assert rows[1].loss == pytest.approx(rows[0].loss, rel=2e-3)
    record = json.loads((tmp_path / "training.json").read_text())
    assert record["rows"][1]["way"] == "apply"
    assert {"device", "torch", "transformers", "liger-kernel", "layers"} <= record["environment"].keys()
    assert training.shown(rows[1]) in (tmp_path / "training.txt").read_text()
    assert training.shown(rows[1]) in capsys.readouterr().out


def test_a_way_that_cannot_be_made_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def patch_and_fail(_: Any) -> None:
        raise ModuleNotFoundError("No module named 'liger_kernel'")

    monkeypatch.setattr(training_ways, "put_liger", patch_and_fail)
    rows = training.main([*OPTIONS, "--ways", "liger", "plain"])
    assert (rows[0].way, rows[0].ms, rows[0].fault) == (
        "liger", None, "ModuleNotFoundError: No module named 'liger_kernel'",
    )  # fmt: skip
    assert rows[1].ms


def test_what_a_way_puts_into_transformers_holds_only_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    own, calls = modeling_llama.apply_rotary_pos_emb, []

    def counted(*given: Any, **named: Any) -> Any:
        calls.append(1)
        return own(*given, **named)

    def patch(_: Any) -> None:
        modeling_llama.apply_rotary_pos_emb = counted

    monkeypatch.setattr(training_ways, "put_liger", patch)
    rows = training.main([*OPTIONS, "--ways", "plain", "liger"])
    assert modeling_llama.apply_rotary_pos_emb is own
    # of one layer: warm-up, and rounds with the step before each
    assert len(calls) == training.WARM_UP + 2 * ROUNDS
    assert rows[0].loss == rows[1].loss


@pytest.mark.parametrize("text", ["4", "4x", "4x1", "0x8", "4x2048x1", "axb"])
def test_a_batch_is_two_numbers(text: str) -> None:
    assert training.batch_and_length("4x2048") == (4, 2048)
    with pytest.raises(argparse.ArgumentTypeError, match="expected sequences and tokens of each"):
        training.batch_and_length(text)
