"""A winner that is right for the tuned columns and wrong within their range answers for no others."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.problem import Problem
from registry.tuner.decide.judge import BLOCKS, PRE_ROUNDS
from registry.tuner.events import Event, Note
from registry.tuner.limits import Budget
from registry.tuner.options import TuneOptions
from registry.tuner.run import tune
from tuning_db import Store, Transfer

pytestmark = pytest.mark.thorough

COLS = 1024
NAMES = {3: "honest", 4: "short", 5: "vectors", 6: "constant", 7: "raises"}
TOLD = {
    "short": "cols=513: wrong_result: normal inputs: ",
    "vectors": "wrong_result: normal inputs: ",
    "constant": "it runs the same code at both ends of no range of cols from 513 to 1024",
    "raises": "these columns were not thought of",
}
"""What is said of each that does not transfer."""


class Tuned:
    """One run in which each of them is the only one to tune its problem, and a dispatcher that has its winners."""

    def __init__(self, folder: Path) -> None:
        catalog = Catalog(entry_points=())
        catalog.load_file(Path(__file__).with_name("cheats_at_other_columns.py"))
        events: list[Event] = []
        database = str(folder / "tuning.db")
        results = tune(
            [Problem("softmax", {"rows": rows, "cols": COLS, "dtype": "float32"}) for rows in NAMES],
            catalog=catalog,
            device=Device.of("cpu"),
            database=database,
            options=TuneOptions(Budget(trials=2), implementations=[f"columns.{name}" for name in NAMES.values()]),
            observer=events.append,
        )
        self.winners = {result.problem.rows: result.implementation for result in results}
        self.notes = [event.message for event in events if isinstance(event, Note)]
        with Store.open(database) as store:
            self.transfers = {one.problem.dims["rows"]: one.transfers for one in store.winners(op="softmax")}
        self.dispatcher = Dispatcher(catalog)
        self.dispatcher.configure(database=database)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    folder = tmp_path_factory.mktemp("columns")
    with pytest.MonkeyPatch.context() as patch:
        # the lock of the device is this run's own: it waits for no other that measures
        patch.setenv("KERNEL_REGISTRY_CACHE", str(folder / "cache"))
        # among those that are right where they are tuned there is nothing to decide: each is alone
        patch.setattr("registry.tuner.decide.judge.MOST_BLOCKS", BLOCKS)
        patch.setattr("registry.tuner.decide.contest.ROUNDS", PRE_ROUNDS)
        # 6 µs take 7,500 where others hold the core of a second thread: that tells nothing about other columns
        patch.setattr("registry.tuner.decide.contest_facts.DISTURBED", {"cpu": math.inf})
        return Tuned(folder)


def test_each_wins_the_problem_that_it_is_right_for(tuned: Tuned) -> None:
    assert tuned.winners == {rows: f"columns.{name}" for rows, name in NAMES.items()}


def test_the_honest_one_transfers_between_the_ends(tuned: Tuned) -> None:
    assert tuned.transfers[3] == {"cols": Transfer(513, 1024, ("",))}
    explained = tuned.dispatcher.explain("softmax", torch.randn(3, 513))
    assert (explained.step, explained.implementation) == ("nearest", "columns.honest")
    assert explained.reason == "the winner of rows=3, cols=1024 (verified at 513 and 1024)"
    assert not any("columns.honest" in note for note in tuned.notes)


@pytest.mark.parametrize("name", TOLD)
def test_the_others_do_not_and_it_is_told_why(tuned: Tuned, name: str) -> None:
    rows = next(rows for rows, each in NAMES.items() if each == name)
    alone = {} if name == "constant" else {"cols": Transfer(COLS, COLS)}
    assert tuned.transfers[rows] == alone
    (note,) = [note for note in tuned.notes if f"columns.{name}() answers for no other size: " in note]
    assert TOLD[name] in note


@pytest.mark.parametrize("name", ["short", "vectors", "raises"])
def test_what_was_wrong_elsewhere_is_not_run_there(tuned: Tuned, name: str) -> None:
    rows = next(rows for rows, each in NAMES.items() if each == name)
    for cols in (513, 777, 1023):
        explained = tuned.dispatcher.explain("softmax", torch.randn(rows, cols))
        assert (explained.step, explained.implementation) == ("default", "columns.plain")
    assert tuned.dispatcher.explain("softmax", torch.randn(rows, COLS)).implementation == f"columns.{name}"
