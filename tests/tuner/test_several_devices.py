"""A run on several devices. CPUs with numbers stand for GPUs: each has a worker and a lock of its own, and tunes."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.errors import RegistryError
from registry.problem import Problem
from registry.tuner.events import (
    Event,
    FinalsStarted,
    Note,
    Observer,
    ProblemDecided,
    Result,
    RunEnded,
    RunStarted,
    TrialDone,
)
from registry.tuner.limits import Budget
from registry.tuner.options import TuneOptions
from registry.tuner.run import tune
from tuning_db import Store

ROGUES = Path(__file__).with_name("rogues.py")
CPU = Device.of("cpu")
SECOND = replace(CPU, index=1)
OTHER = replace(CPU, index=1, name="another CPU")
PROBLEMS = tuple(Problem("square", {"n": n, "dtype": "float32"}) for n in (10_001, 10_002))
NAPS = "0.002"
"""Seconds: longer than what other programs on the cores add, so that the shorter nap always wins.

With 0.5 ms, and nine programs at once on two cores, one of four finals could not tell it from the one twice as long."""


@pytest.fixture
def rogues(
    no_plugins: None, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, own_lock: None, few_blocks: None
) -> Catalog:
    monkeypatch.setenv("ROGUE_NAPS", NAPS)
    catalog.load_file(ROGUES)
    return catalog


def run(
    catalog: Catalog, database: Path, *devices: Device, names: Sequence[str] = ("naps",),
    problems: Sequence[Problem] = PROBLEMS, seconds: float | None = None, watch: Observer = lambda _: None,
) -> tuple[tuple[Result, ...], list[Event]]:  # fmt: skip
    events: list[Event] = []

    def observe(event: Event) -> None:
        events.append(event)
        watch(event)

    results = tune(
        problems, catalog=catalog, device=devices, database=str(database), observer=observe,
        options=TuneOptions(
            Budget(trials=4, run_seconds=seconds), implementations=[f"rogue.{name}" for name in names]
        ),
    )  # fmt: skip
    return results, events


def tried_on(events: Sequence[Event]) -> Counter[str]:
    return Counter(event.device for event in events if isinstance(event, TrialDone))


def ended(events: Sequence[Event]) -> RunEnded:
    (last,) = (event for event in events if isinstance(event, RunEnded))
    assert last is events[-1]
    return last


def winners(database: Path) -> dict[int, tuple[str, object]]:
    with Store.open(database) as store:
        found = store.winners(op="square", hardware=CPU.hardware())
    return {one.problem.dims["n"]: (one.candidate.implementation, one.candidate.config["naps"]) for one in found}


def test_two_share_the_problems_and_find_the_winners_that_one_finds(rogues: Catalog, tmp_path: Path) -> None:
    together = tmp_path / "together.db"  # what one finds alone is tested where the other device fails at the start
    results, events = run(rogues, together, CPU, SECOND)
    assert {result.problem for result in results} == set(PROBLEMS)
    assert winners(together) == {problem.dims["n"]: ("rogue.naps", 1) for problem in PROBLEMS}

    tried = tried_on(events)
    assert tried.keys() == {"cpu", "cpu:1"}
    assert tried.total() == 2 * len(PROBLEMS), "nothing is tried twice"
    (started,) = (event for event in events if isinstance(event, RunStarted))
    assert started.device == f"cpu, cpu:1 ({CPU.name})"
    used = {one.device: one for one in ended(events).devices}
    assert {name: one.identity for name, one in used.items()} == {"cpu": "cpu", "cpu:1": "cpu:1"}
    assert {name: one.trials for name, one in used.items()} == tried
    with Store.open(together) as store:
        (stored,) = store.runs()
        assert {one["device"] for one in stored.summary["devices"]} == {"cpu", "cpu:1"}
        assert Counter(trial.details["device"] for trial in store.trials(op="square")) == tried
        for winner in store.winners(op="square"):
            assert {row.block for row in store.finals(winner.uid)}, "finals were held wherever a worker was idle"


@pytest.mark.thorough
def test_each_hardware_tunes_all_problems_at_the_same_time(rogues: Catalog, tmp_path: Path) -> None:
    problems = PROBLEMS[:1]
    results, events = run(rogues, tmp_path / "run.db", CPU, OTHER, problems=problems)
    decided = [number for number, event in enumerate(events) if isinstance(event, ProblemDecided)]
    assert tried_on(events[: decided[0]]).keys() == {"cpu", "cpu:1"}
    assert [(result.hardware, result.problem) for result in results] == [
        (name, problem) for name in (CPU.name, OTHER.name) for problem in problems
    ]
    assert {result.config["naps"] for result in results} == {1}
    assert tried_on(events) == {"cpu": 2, "cpu:1": 2}
    assert [one.device for one in ended(events).devices] == ["cpu", "cpu:1"]
    with Store.open(tmp_path / "run.db") as store:
        for device in (CPU, OTHER):
            assert len(store.winners(op="square", hardware=device.hardware())) == len(problems)


@pytest.mark.thorough
def test_ctrl_c_ends_all_and_the_same_command_goes_on(rogues: Catalog, tmp_path: Path) -> None:
    database, told = tmp_path / "run.db", threading.Event()

    def interrupt(event: Event) -> None:
        if isinstance(event, TrialDone) and not told.is_set():
            told.set()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # as a terminal's Ctrl-C comes

    results, events = run(rogues, database, CPU, OTHER, watch=interrupt)
    last = ended(events)
    assert last.interrupted
    assert last.undecided == 2 * len(PROBLEMS) - len(results) > 0
    kept = tried_on(events).total()
    results, events = run(rogues, database, CPU, OTHER)
    assert {result.problem for result in results} == set(PROBLEMS)
    assert not ended(events).interrupted
    assert tried_on(events).total() <= 2 * len(results) - kept


@pytest.mark.thorough
def test_a_time_limit_holds_for_all(rogues: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.tuner.search.loop._ACTIVE_PROBLEMS", 1)
    problems = tuple(Problem("square", {"n": n, "dtype": "float32"}) for n in range(10_001, 10_005))
    results, events = run(rogues, tmp_path / "run.db", CPU, SECOND, problems=problems, seconds=0.5)
    last = ended(events)
    assert last.timed_out
    assert last.undecided == len(problems) - len(results) > 0


class Failing(Device):
    """A CPU that stands for a GPU; from when the test says so, no new worker finds it."""

    failed = False

    @property
    def label(self) -> str:
        return "cuda:97" if Failing.failed else super().label


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    monkeypatch.setattr(Failing, "failed", False)
    return Failing(**vars(SECOND))


@pytest.mark.thorough
def test_a_device_that_fails_at_the_start_leaves_all_to_the_other(
    rogues: Catalog, tmp_path: Path, failing: Failing
) -> None:
    Failing.failed = True
    results, events = run(rogues, tmp_path / "run.db", CPU, failing)
    assert {result.problem: result.config["naps"] for result in results} == dict.fromkeys(PROBLEMS, 1)
    assert tried_on(events).keys() == {"cpu"}
    (note,) = (event.message for event in events if isinstance(event, Note))
    assert note.startswith(f"the worker on cuda:97 ({CPU.name}) does not start: the process ended: exit code 1")
    assert note.endswith("the run goes on without it, on cpu")


# search/test_loop.py has one that fails in the search
@pytest.mark.thorough
@pytest.mark.parametrize("when", [TrialDone, FinalsStarted], ids=["in the search", "in the finals"])
def test_what_a_device_was_at_when_it_failed_is_done_by_the_other(
    rogues: Catalog, tmp_path: Path, failing: Failing, when: type[Event]
) -> None:
    """Its worker dies of a candidate or gives way to a fresh one, and no other finds the device."""

    def watch(event: Event) -> None:
        on = event.device if isinstance(event, TrialDone) else "cpu:1"
        Failing.failed = Failing.failed or (isinstance(event, when) and on == "cpu:1")

    results, events = run(rogues, tmp_path / "run.db", CPU, failing, names=("naps", "crashes"), watch=watch)
    assert {result.problem: result.config["naps"] for result in results} == dict.fromkeys(PROBLEMS, 1)
    assert [event for event in events if isinstance(event, Note) and "goes on without it" in event.message]
    assert not [event for event in events if isinstance(event, Note) and "lost" in event.message]
    tried = Counter((event.problem, event.implementation) for event in events if isinstance(event, TrialDone))
    assert tried == {(problem, f"rogue.{name}"): count for problem in PROBLEMS
                     for name, count in (("naps", 2), ("crashes", 1))}  # fmt: skip


def test_where_the_last_device_fails_the_run_does(rogues: Catalog, tmp_path: Path, failing: Failing) -> None:
    Failing.failed = True
    with pytest.raises(RegistryError, match=r"the worker on cuda:97 .* does not start"):
        run(rogues, tmp_path / "run.db", failing)
    with pytest.raises(RegistryError, match=r"the worker on cuda:97 .* does not start"):
        run(rogues, tmp_path / "run.db", failing, replace(failing, index=2))
