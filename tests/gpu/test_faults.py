"""A whole run whose candidates crash, hang, leave, print and hoard: it ends as any other, and what is right wins."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.problem import Problem
from registry.tuner.events import Event, Note, Result, RunEnded, TrialDone
from registry.tuner.limits import Budget, Limits
from registry.tuner.options import TuneOptions
from registry.tuner.run import tune
from tuning_db import Store, Trial

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

FAULTS = Path(__file__).with_name("faults_on_device.py")
PROBLEM = Problem("square", {"n": 2**20 + 2, "dtype": "float32"})
VERIFY_S = 10.0

STATUSES = {
    "fault.none": "ok",
    "fault.segfault": "crash",
    "fault.exits": "error",
    "fault.hangs": "timeout",
    "fault.hangs_device": "timeout",
    "fault.prints": "ok",
    "fault.hoards": "out_of_memory",
    "fault.asks": "out_of_memory",
    "fault.poisons": "crash",
}
WORDS = {
    "fault.segfault": "SIGSEGV",
    "fault.exits": "SystemExit: 0",
    "fault.hangs": f"verify took more than {VERIFY_S:g} s",
    "fault.hangs_device": f"verify took more than {VERIFY_S:g} s",
    "fault.poisons": "the CUDA context died",
}


@dataclass(frozen=True)
class Run:
    """What a run told, and what it stored."""

    results: tuple[Result, ...]
    events: list[Event]
    stored: dict[str, Trial]
    winners: list[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    catalog = Catalog()
    catalog.load_file(FAULTS)
    database = str(tmp_path_factory.mktemp("faults") / "tuning.db")
    events: list[Event] = []
    results = tune(
        [PROBLEM],
        catalog=catalog,
        device=Device.best(),
        database=database,
        options=TuneOptions(
            Budget(seconds=200, trials=2 * len(STATUSES)), Limits(verify=VERIFY_S), implementations=list(STATUSES)
        ),
        observer=events.append,
    )
    with Store.open(database) as store:
        trials = list(store.trials(op="square"))
        winners = [decision.candidate.implementation for decision in store.winners(op="square")]
    assert len(trials) == len(STATUSES)
    return Run(results, events, {trial.candidate.implementation: trial for trial in trials}, winners)


@pytest.mark.parametrize("name", STATUSES)
def test_each_fault_is_told_and_stored_with_its_status(run: Run, name: str) -> None:
    told = {event.implementation: event.status for event in run.events if isinstance(event, TrialDone)}
    assert told.keys() == run.stored.keys() == STATUSES.keys()
    assert told[name] == run.stored[name].status == STATUSES[name], run.stored[name].message
    assert WORDS.get(name, "") in run.stored[name].message


def test_the_run_ends_as_any_other_and_what_is_right_wins(run: Run) -> None:
    ended = run.events[-1]
    assert isinstance(ended, RunEnded)
    assert (ended.interrupted, ended.undecided, ended.trials) == (False, 0, len(STATUSES))
    (result,) = run.results
    assert (result.implementation, result.verdict) == ("fault.none", "new")
    assert result.median_us is not None
    assert run.winners == ["fault.none"]


def test_each_lost_worker_is_noted(run: Run) -> None:
    notes = [event.message for event in run.events if isinstance(event, Note)]
    said = Counter(word for note in notes for word in ("SIGSEGV", "verify took more than") if word in note)
    # a process whose context has died has told what became of its trial, and ends by itself
    assert said == {"SIGSEGV": 1, "verify took more than": 2}, notes
