"""Whoever is right for the call that is tuned, and wrong for others, is refused by tuner and public check."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.contracts import RMS_NORM, SQUARE, VECTOR_ADD
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.errors import CheckError
from registry.implementation import Implementation
from registry.problem import Problem
from registry.testing import check_implementation
from registry.tuner.events import Event, Result, TrialDone
from registry.tuner.limits import Budget
from registry.tuner.options import TuneOptions
from registry.tuner.run import tune

CPU = Device.of("cpu")
OPS = (SQUARE, RMS_NORM, VECTOR_ADD)
PROBLEMS = (
    Problem("square", {"n": 20_002, "dtype": "float32"}),
    Problem("rms_norm", {"rows": 4, "cols": 300, "dtype": "float32"}),
    Problem("vector_add", {"n": 5_000, "dtype": "float32"}),
)
RIGHT = ("any_size", "scratch", "add")
FALSE = "says any_size = True, but the run that bind() returned for n={} is wrong for n={}"
REMEDY = "Take sizes from the tensors that the run is given, or say any_size = False"
REFUSED = {
    "bound_size": FALSE.format(20_002, 60_006),
    "first_size": FALSE.format(20_002, 60_006),
    "smaller_size": FALSE.format(20_002, 1),
    "workspace": "called by two threads at once",
    "static": "called by two threads at once",
    "past_scratch": "it writes outside its scratch",
    "first_strides": "with strided-dense inputs",
    "second_strides": "with strided-dense inputs",
}
"""What the tuner says of each. The first probes, of sizes from 1 to 4099, tell another size of a false claim."""


class Run:
    """One run over all problems with nothing but this plugin's implementations."""

    def __init__(self, catalog: Catalog, database: Path) -> None:
        events: list[Event] = []
        self.offered = offered(catalog)
        results = tune(
            PROBLEMS,
            catalog=catalog,
            device=CPU,
            database=str(database),
            options=TuneOptions(Budget(trials=20), implementations=sorted(self.offered)),
            observer=events.append,
        )
        self.winners: dict[str, Result] = {result.problem.op: result for result in results}
        self.trials = {event.implementation: event for event in events if isinstance(event, TrialDone)}


def offered(catalog: Catalog) -> dict[str, Implementation]:
    found = [implementation for op in OPS for implementation in catalog.implementations(op.name)]
    return {one.name: one for one in found if one.name.startswith("other.")}


@pytest.fixture(scope="module")
def plugin() -> Catalog:
    catalog = Catalog()
    catalog.load_file(Path(__file__).with_name("cheats_at_other_calls.py"))
    return catalog


@pytest.fixture(scope="module")
def run(plugin: Catalog, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("other_calls")
    with pytest.MonkeyPatch.context() as patch:
        # the lock of the device is this run's own: it waits for no other that measures
        patch.setenv("KERNEL_REGISTRY_CACHE", str(folder / "cache"))
        return Run(plugin, folder / "tuning.db")


@pytest.mark.parametrize("name", REFUSED)
def test_the_tuner_refuses_whoever_is_wrong_at_another_call(run: Run, name: str) -> None:
    trial = run.trials[f"other.{name}"]
    assert trial.status in {"wrong_result", "error"}, trial.message
    assert REFUSED[name] in trial.message
    assert ("any_size" in trial.message) == (name.endswith("_size"))
    assert REMEDY in trial.message or not name.endswith("_size")


@pytest.mark.parametrize("name", RIGHT)
def test_the_tuner_accepts_their_honest_peers_which_win(run: Run, name: str) -> None:
    trial = run.trials[f"other.{name}"]
    assert trial.status == "ok", trial.message
    assert f"other.{name}" in {result.implementation for result in run.winners.values()}


def test_all_of_them_were_tried(run: Run) -> None:
    assert run.offered.keys() == run.trials.keys() == {f"other.{name}" for name in (*REFUSED, *RIGHT)}


SMALL = {
    "square": {"n": 1000, "dtype": "float32"},
    "rms_norm": {"rows": 4, "cols": 300, "dtype": "float32"},
    "vector_add": {"n": 1000, "dtype": "float32"},
}
TOLD = {
    **REFUSED,
    "bound_size": FALSE.format(1000, 3000),
    "first_size": FALSE.format(1000, 3000),
    "smaller_size": FALSE.format(1000, 500),
    "past_scratch": "it writes outside its scratch space",
    "first_strides": " strided-dense other.first_strides",
    "second_strides": " strided-dense other.second_strides",
}


@pytest.mark.parametrize("name", [*TOLD, *RIGHT])
def test_the_public_check_tells_them_apart(plugin: Catalog, name: str) -> None:
    implementation = offered(plugin)[f"other.{name}"]
    op = next(op for op in OPS if op.name == implementation.op)
    if name in RIGHT:
        assert check_implementation(implementation, op, problems=[SMALL[op.name]]).ok
        return
    with pytest.raises(CheckError) as raised:
        check_implementation(implementation, op, problems=[SMALL[op.name]])
    assert TOLD[name] in str(raised.value)
