"""Whoever leaves out work on arguments that it should mutate, while it is timed on a GPU, is refused by a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.problem import Problem
from registry.tuner.events import Event, TrialDone
from registry.tuner.limits import Budget
from registry.tuner.options import TuneOptions
from registry.tuner.run import tune

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

PLUGIN = Path(__file__).parent.parent / "adversarial" / "cheats_that_mutate.py"
PROBLEM = Problem("fused_add_rms_norm", {"rows": 64, "cols": 4096, "weight": True, "dtype": "bfloat16"})
CHEATS = ("collection", "every_other")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Mapping[str, TrialDone], list[str]]:
    """Trials by name without the vendor, and the winners."""
    catalog, events = Catalog(), list[Event]()
    catalog.load_file(PLUGIN)
    names = [f"mutate.{name}" for name in ("honest", *CHEATS)]
    results = tune(
        [PROBLEM],
        catalog=catalog,
        device=Device.best(),
        database=str(tmp_path_factory.mktemp("mutates") / "tuning.db"),
        options=TuneOptions(Budget(trials=20), implementations=names),
        observer=events.append,
    )
    done = [event for event in events if isinstance(event, TrialDone)]
    trials = {event.implementation.partition(".")[2]: event for event in done}
    return trials, [result.implementation for result in results]


def test_whoever_captures_nothing_is_refused(run: tuple[Mapping[str, TrialDone], list[str]]) -> None:
    # by the outputs of a sample or of calls after timing, or since nothing is faster than the memory
    trial = run[0]["collection"]
    assert trial.status == "wrong_result", trial.message
    found = ("a sample left a wrong output", "after timing", "it leaves work out")
    assert any(how in trial.message for how in found), trial.message


def test_whoever_skips_every_other_call_is_refused(run: tuple[Mapping[str, TrialDone], list[str]]) -> None:
    # where a call before each captured one makes all of these work, calls one by one after timing are told from none
    trial = run[0]["every_other"]
    assert trial.status == "wrong_result", trial.message
    assert "a sample left a wrong output" in trial.message or "after timing" in trial.message, trial.message


def test_the_honest_one_is_accepted_and_wins(run: tuple[Mapping[str, TrialDone], list[str]]) -> None:
    trials, winners = run
    assert trials["honest"].status == "ok", trials["honest"].message
    assert winners == ["mutate.honest"]
