"""The cheats of tests/adversarial on a GPU, and those that need one: none wins, each is refused for what it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.problem import Problem
from registry.tuner.events import Event, TrialDone
from registry.tuner.limits import Budget
from registry.tuner.options import TuneOptions
from registry.tuner.run import tune
from tuning_db import Store, Transfer

from .expected_of_cheats import (
    BY_THE_HOST,
    KNOWN,
    ON_CPUS,
    ON_CPUS_TOO,
    ON_GPUS,
    PROBLEMS,
    REFUSED,
    REFUSED_OR_BEATEN,
    RIGHT,
    RIGHT_BUT_SLOW,
    loaded,
    offered,
)

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)


@dataclass(frozen=True)
class Run:
    """One run over all problems with only the cheats and their honest peers; by name, or by op who won last."""

    offered: frozenset[str]
    trials: Mapping[str, TrialDone]
    winners: Mapping[str, str]
    won: frozenset[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    catalog = loaded(*ON_CPUS, *ON_GPUS)
    names = offered(catalog)
    events: list[Event] = []
    results = tune(
        PROBLEMS,
        catalog=catalog,
        device=Device.best(),
        database=str(tmp_path_factory.mktemp("adversarial") / "tuning.db"),
        options=TuneOptions(Budget(trials=2 * len(names)), implementations=sorted(names)),
        observer=events.append,
    )
    trials = {event.implementation: event for event in events if isinstance(event, TrialDone)}
    winners = {result.problem.op: result.implementation for result in results}
    return Run(names, trials, winners, frozenset(result.implementation for result in results))


@pytest.mark.parametrize("name", REFUSED)
def test_each_cheat_is_refused_with_its_status(run: Run, name: str) -> None:
    expected, trial = REFUSED[name], run.trials[name]
    assert trial.status in (expected if isinstance(expected, tuple) else (expected,)), trial.message
    assert trial.message


@pytest.mark.parametrize("name", [*(name for names in RIGHT.values() for name in names), *RIGHT_BUT_SLOW])
def test_what_is_right_is_not_refused(run: Run, name: str) -> None:
    assert run.trials[name].status == "ok", run.trials[name].message


@pytest.mark.parametrize("name", BY_THE_HOST)
def test_who_waits_for_the_device_is_found_out_or_right(run: Run, name: str) -> None:
    assert run.trials[name].status in ("ok", "wrong_result"), run.trials[name].message
    assert name not in run.won


@pytest.mark.parametrize("name", REFUSED_OR_BEATEN)
def test_who_remembers_or_is_late_is_refused_or_does_not_win(run: Run, name: str) -> None:
    expected, trial = REFUSED_OR_BEATEN[name], run.trials[name]
    refused = expected if isinstance(expected, tuple) else (expected,)
    assert trial.status in (*refused, "ok"), trial.message
    assert name not in run.won


@pytest.mark.parametrize("op", RIGHT)
def test_only_what_is_right_wins(run: Run, op: str) -> None:
    assert run.winners[op] in RIGHT[op]


def test_every_cheat_that_runs_on_a_gpu_was_tried(run: Run) -> None:
    assert run.offered == KNOWN
    assert run.trials.keys() == KNOWN


COLS = 1024
AT_OTHER_COLUMNS = {3: "honest", 4: "short", 5: "vectors", 7: "raises"}
"""The only implementation that supports so many rows."""


@pytest.fixture(scope="module")
def transfers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Transfer]]:
    """Name -> the columns for which its winner answers, after a run with each at the rows that are left to it."""
    catalog = Catalog()
    catalog.load_file(ON_CPUS_TOO / "cheats_at_other_columns.py")
    database = str(tmp_path_factory.mktemp("columns") / "tuning.db")
    for _ in range(3):  # a busy machine may leave finals undecided, which the same call decides
        results = tune(
            [Problem("softmax", {"rows": rows, "cols": COLS, "dtype": "float32"}) for rows in AT_OTHER_COLUMNS],
            catalog=catalog,
            device=Device.best(),
            database=database,
            options=TuneOptions(
                Budget(trials=2), implementations=[f"columns.{each}" for each in AT_OTHER_COLUMNS.values()]
            ),
        )
        if all(result.implementation for result in results):
            break
    with Store.open(database) as store:
        return {AT_OTHER_COLUMNS[one.problem.dims["rows"]]: one.transfers for one in store.winners(op="softmax")}


@pytest.mark.parametrize("name", AT_OTHER_COLUMNS.values())
def test_a_winner_that_is_wrong_at_other_columns_answers_for_its_own_alone(
    transfers: Mapping[str, Mapping[str, Transfer]], name: str
) -> None:
    ends = transfers[name]["cols"]
    assert (ends.low, ends.high) == ((513, COLS) if name == "honest" else (COLS, COLS))
