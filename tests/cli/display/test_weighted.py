"""``tune`` on a recorded shapes file: counts are weights, and the end says what the winners are worth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from registry.cli.display.changes import saving_line
from registry.tuner.events import Saving

from ..conftest import Command


@pytest.mark.thorough
@pytest.mark.usefixtures("own_lock", "few_blocks")
def test_a_run_on_counted_problems_ends_with_their_saving(command: Command, tmp_path: Path) -> None:
    shapes = tmp_path / "shapes.yaml"
    # short enough that torch stays on one thread: two on busy cores wait for each other at every call
    shapes.write_text("square:\n  - {n: 10000, dtype: float32, count: 37}\n")
    options = ["--shapes", shapes, "--device", "cpu", "--implementations", "torch.native", "--trials", "1"]
    lines = [json.loads(line) for line in command("tune", *options, "--json").out.splitlines()]
    (ended,) = [line for line in lines if line["event"] == "run_ended"]
    (result,) = lines[-1]["results"]
    assert ended["saving"]["share"] == 1.0
    assert ended["saving"]["winner_us"] == 37 * result["median_us"]
    assert result["default_ratio"]["low"] <= result["default_ratio"]["value"] == 1.0 <= result["default_ratio"]["high"]
    told = command("tune", *options)
    assert "with winners for 100% of the counted calls' time, as estimated: " in told.out


def test_a_saving_is_told_with_its_interval() -> None:
    told = saving_line(Saving(0.97, 12_400.0, 12_100.0, 12_800.0, 9_100.0))
    assert told == (
        "with winners for 97% of the counted calls' time, as estimated: 12.4 ms (12.1 ms to 12.8 ms) by defaults, "
        "9.1 ms by winners, 27% less"
    )
    assert (
        saving_line(Saving(0.5, 0.0, 0.0, 0.0, 0.0)) == "with winners for 50% of the counted calls' time, as estimated"
    )
