"""A whole run on the CPU: what is right wins, what is wrong is refused, nothing is lost."""

from __future__ import annotations

import shutil
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate
from registry.errors import StoreError, UnknownNameError
from registry.problem import Problem
from registry.tuner.decide.judge import BLOCKS, MOST_BLOCKS, ROUNDS
from registry.tuner.decide.noise import PAIRS_PER_DECADE
from registry.tuner.events import (
    BlockStarted,
    Event,
    Note,
    ProblemDecided,
    ProblemSkipped,
    Result,
    RunEnded,
    RunStarted,
    SecondsLeft,
    TrialDone,
)
from registry.tuner.jobs import BlockJob, Outcome
from registry.tuner.limits import Budget, Limits
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.options import TuneOptions
from registry.tuner.planning.problems import plan
from registry.tuner.run import tune
from registry.tuner.storing import RunStore
from registry.tuner.workers.crew import Crew
from tuning_db import Store

from ..conftest import block_plugins

ROGUES = Path(__file__).with_name("rogues.py")
CPU = Device.of("cpu")
# short enough that torch stays on one thread, also at the larger sizes that are tried: with two threads a busy core
# makes a call wait for whole time slices
PROBLEM = Problem("square", {"n": 10_001, "dtype": "float32"})


@pytest.fixture
def rogues(no_plugins: None, catalog: Catalog) -> Catalog:
    catalog.load_file(ROGUES)
    return catalog


def run(catalog: Catalog, database: Path, *names: str, problems: tuple[Problem, ...] = (PROBLEM,), retune: bool = False,
        seconds: float | None = None, short_for_hang: bool = False,
        ) -> tuple[tuple[Result, ...], list[Event]]:  # fmt: skip
    events: list[Event] = []
    results = tune(
        problems,
        catalog=catalog,
        device=CPU,
        database=str(database),
        options=TuneOptions(
            Budget(seconds, trials=24),
            ShortForHang(events) if short_for_hang else Limits(),
            implementations=[f"rogue.{name}" for name in names],
            retune=retune,
        ),
        observer=events.append,
    )
    return results, events


class ShortForHang(Limits):
    """A hang costs its whole limit, so its own is short; honest work may be as slow as the machine is.

    ``rogue.hangs`` is the first to be tried, so the short limit holds until a trial has ended.
    """

    _events: list[Event]

    def __init__(self, events: list[Event]) -> None:
        super().__init__()
        object.__setattr__(self, "_events", events)

    def seconds(self, step: str) -> float:
        hangs = step == "verify" and not statuses(self._events)
        return 0.5 if hangs else super().seconds(step)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result, list[Event]]:
    """The folder of a database that one run has filled, its result and its events: what several tests begin with."""
    folder = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        block_plugins(patch)
        catalog = Catalog()
        catalog.load_file(ROGUES)
        patch.setenv("KERNEL_REGISTRY_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr("registry.tuner.decide.judge.MOST_BLOCKS", BLOCKS)
        (result,), events = run(catalog, folder / "run.db", "honest")
    return folder, result, events


@pytest.fixture
def database(tuned: tuple[Path, Result, list[Event]], tmp_path: Path) -> Path:
    """A copy of that database."""
    return Path(shutil.copytree(tuned[0], tmp_path / "tuned")) / "run.db"


def statuses(events: list[Event]) -> dict[str, str]:
    return {event.implementation: event.status for event in events if isinstance(event, TrialDone)}


@pytest.mark.usefixtures("few_blocks")
def test_only_what_is_right_can_win_and_each_fault_has_its_status(rogues: Catalog, tmp_path: Path) -> None:
    database = tmp_path / "run.db"
    refused = ("zeros", "forgets", "mutates", "later", "buffer", "scratch")
    names = ("honest", *refused, "wavers", "crashes", "exits", "raises", "chatters", "mute")
    (result,), events = run(rogues, database, *names)

    assert statuses(events) == {
        "rogue.honest": "ok",
        "rogue.chatters": "ok",
        **{f"rogue.{name}": "wrong_result" for name in refused},
        "rogue.wavers": "nondeterministic",
        "rogue.crashes": "crash",
        "rogue.exits": "error",
        "rogue.raises": "error",
    }
    assert result.implementation == "rogue.honest"
    assert result.verdict == "new"
    assert result.median_us is not None
    assert result.speedup.keys() == {"rogue.chatters"}
    assert any(isinstance(event, Note) and "replaced" in event.message for event in events)
    begun = [number for number, event in enumerate(events) if isinstance(event, BlockStarted)]
    assert [events[number].number for number in begun] == list(range(1, BLOCKS + 1))  # type: ignore[attr-defined]
    assert all(isinstance(events[number + 1], SecondsLeft) for number in begun)
    with Store.open(database) as store:
        stored = Counter(trial.status for trial in store.trials(op="square"))
        (winner,) = store.winners(op="square")
    assert stored == Counter(ok=4, wrong_result=6, nondeterministic=1, crash=1, error=2)
    assert winner.candidate.implementation == "rogue.honest"
    assert winner.trial_uid is not None


@pytest.mark.usefixtures("few_blocks")
def test_what_is_known_is_not_measured_again_unless_asked(
    rogues: Catalog, tuned: tuple[Path, Result, list[Event]], database: Path
) -> None:
    first = tuned[1]
    (second,), events = run(rogues, database, "honest")
    assert (second.verdict, second.config, second.median_us) == ("kept", first.config, first.median_us)
    assert not statuses(events)
    (third,), events = run(rogues, database, "honest", retune=True)
    assert third.verdict in {"tie", "kept"}
    assert third.config == first.config
    assert statuses(events) == {"rogue.honest": "ok"}


@pytest.mark.usefixtures("few_blocks")
def test_an_implementation_that_the_winner_has_not_met_is_raced_once(
    rogues: Catalog, tuned: tuple[Path, Result, list[Event]], database: Path
) -> None:
    (result,), events = run(rogues, database, "honest", "zeros")
    (started,) = (event for event in events if isinstance(event, RunStarted))
    assert started.known == ()
    told = [event.message for event in events if isinstance(event, Note)]
    assert told[0] == "1 problem is raced again, because the stored winner has not met rogue.zeros"
    tried = [event.implementation for event in events if isinstance(event, TrialDone)]
    assert "rogue.zeros" in tried
    assert tried.count("rogue.honest") <= 1, "what was tried before is known, but the winner must be beaten"
    assert (result.implementation, result.config) == ("rogue.honest", tuned[1].config)
    (again,), events = run(rogues, database, "honest", "zeros")
    assert again.verdict == "kept"
    assert not statuses(events)
    assert not [event for event in events if isinstance(event, Note)]


# decide/test_finals.py has a stored winner that meets others
@pytest.mark.thorough
@pytest.mark.usefixtures("few_blocks")
def test_a_slower_candidate_cannot_dethrone_a_winner_that_was_not_searched(rogues: Catalog, database: Path) -> None:
    (result,), events = run(rogues, database, "chatters", retune=True)
    assert result.implementation == "rogue.honest"
    assert result.verdict in {"kept", "tie"}
    assert statuses(events) == {"rogue.honest": "ok", "rogue.chatters": "ok"}
    with Store.open(database) as store:
        (winner,) = store.winners(op="square")
    assert winner.candidate.implementation == "rogue.honest"


# hangs of four kinds are told by the worker's tests, and a run goes on after a crash above
@pytest.mark.thorough
@pytest.mark.usefixtures("few_blocks")
def test_a_hanging_candidate_costs_its_limit_and_nothing_else(
    rogues: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROGUE_HANGS", "1")
    (result,), events = run(rogues, tmp_path / "run.db", "honest", "hangs", short_for_hang=True)
    assert statuses(events) == {"rogue.honest": "ok", "rogue.hangs": "timeout"}
    assert result.implementation == "rogue.honest"


@pytest.mark.thorough
def test_slow_kernels_are_decided_within_about_their_budget(
    rogues: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_lock: None
) -> None:
    monkeypatch.setenv("ROGUE_NAPS", "0.004")
    database = tmp_path / "run.db"
    # the times of the search are given: a slow machine would spend the budget before the second candidate is tried
    searched_us = {1: 4_100.0, 2: 8_100.0}
    with Store.open(database) as store:
        told = RunStore(store, CPU, TimingProtocol.of(CPU), {}, lambda note: None)
        (planned,) = plan([PROBLEM], rogues, CPU, ["rogue.naps"])
        for naps, us in searched_us.items():
            candidate = Candidate(rogues.implementation("square", "rogue.naps"), {"naps": naps})
            told.trial(planned, candidate, Outcome("ok", "", (us,) * 6, us, False, "interval", details={}))
    # blocks of 24 rounds would take three times as long
    (result,), events = run(rogues, database, "naps", seconds=0.8)
    assert (result.config, result.verdict) == ({"naps": 1}, "new")
    assert not statuses(events)
    assert result.low is not None
    assert result.low > 1.5
    assert not [event for event in events if isinstance(event, Note) and "lost" in event.message]
    with Store.open(database) as store:
        (winner,) = store.winners(op="square")
        rows = [final for final in store.finals(winner.uid) if final.role != "floor"]
    assert {row.block for row in rows} == set(range(MOST_BLOCKS))
    rounds = len({(row.block, row.round) for row in rows})
    assert 0 < rounds * sum(searched_us.values()) <= 0.8e6 < MOST_BLOCKS * ROUNDS * sum(searched_us.values())


@pytest.mark.thorough
def test_a_time_limit_decides_what_was_begun_and_the_same_run_goes_on_later(
    rogues: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_lock: None
) -> None:
    monkeypatch.setenv("ROGUE_NAPS", "0.001")
    problems = tuple(Problem("square", {"n": n, "dtype": "float32"}) for n in range(10_001, 10_005))

    def limited(seconds: float | None) -> tuple[tuple[Result, ...], list[Event]]:
        events: list[Event] = []
        results = tune(
            problems, catalog=rogues, device=CPU, database=str(tmp_path / "run.db"),
            options=TuneOptions(Budget(trials=2, run_seconds=seconds), implementations=["rogue.naps"]),
            observer=events.append,
        )  # fmt: skip
        return results, events

    first, events = limited(0.5)
    ended = events[-1]
    assert isinstance(ended, RunEnded)
    assert ended.timed_out
    assert ended.undecided == len(problems) - len(first) > 0
    again, events = limited(None)
    assert {result.problem for result in again} == set(problems)
    assert {result.problem: result.config for result in first}.items() <= {
        result.problem: result.config for result in again
    }.items()
    ended = events[-1]
    assert isinstance(ended, RunEnded)
    assert (ended.timed_out, ended.undecided) == (False, 0)
    assert [event for event in events if isinstance(event, SecondsLeft)]
    assert [event.number for event in events if isinstance(event, BlockStarted)] == list(range(1, MOST_BLOCKS))


@pytest.mark.usefixtures("few_blocks")
def test_an_interrupted_run_keeps_what_it_measured_and_goes_on_later(rogues: Catalog, tmp_path: Path) -> None:
    database = tmp_path / "run.db"
    events: list[Event] = []

    def interrupt_after_two(event: Event) -> None:
        events.append(event)
        if sum(isinstance(one, TrialDone) for one in events) == 2 and isinstance(event, TrialDone):
            signal.raise_signal(signal.SIGINT)

    assert threading.current_thread() is threading.main_thread()
    results = tune([PROBLEM], catalog=rogues, device=CPU, database=str(database), observer=interrupt_after_two,
                       options=TuneOptions(implementations=["rogue.honest"]))  # fmt: skip
    assert results == ()
    ended = events[-1]
    assert isinstance(ended, RunEnded)
    assert (ended.interrupted, ended.undecided) == (True, 1)
    with Store.open(database) as store:
        kept = {trial.uid for trial in store.trials(op="square")}
    assert len(kept) >= 2
    (result,), events = run(rogues, database, "honest")
    assert result.implementation == "rogue.honest"
    assert sum(isinstance(event, TrialDone) for event in events) == 3 - len(kept)


# search/test_state.py has what an earlier run has paid for
@pytest.mark.thorough
@pytest.mark.usefixtures("few_blocks")
def test_stored_trials_cost_no_budget(rogues: Catalog, database: Path) -> None:
    with Store.open(database) as store:
        assert len(store.trials(op="square")) == 3
    options = TuneOptions(Budget(trials=1), implementations=["rogue.chatters", "rogue.zeros"], retune=True)
    results = tune([PROBLEM], catalog=rogues, device=CPU, database=str(database), options=options)
    with Store.open(database) as store:
        tried = {trial.candidate.implementation for trial in store.trials(op="square")}
    assert tried == {"rogue.honest", "rogue.chatters"}
    assert results[0].implementation == "rogue.honest"


def test_a_problem_that_does_not_fit_is_skipped_with_the_reason(rogues: Catalog, tmp_path: Path) -> None:
    huge = Problem("square", {"n": 2**42, "dtype": "float32"})
    results, events = run(rogues, tmp_path / "run.db", "honest", problems=(huge,))
    assert results == ()
    (skipped,) = [event for event in events if isinstance(event, ProblemSkipped)]
    assert "GiB" in skipped.reason


def test_unknown_implementations_are_named_before_anything_starts(rogues: Catalog, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"rogue\.honest"):
        run(rogues, tmp_path / "run.db", "honets")
    assert not (tmp_path / "run.db").exists()


def test_an_unusable_database_is_an_error_that_says_so(rogues: Catalog, tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"this is no database" * 100)
    with pytest.raises(StoreError, match=r"broken\.db"):
        run(rogues, broken, "honest")
    assert broken.read_bytes() == b"this is no database" * 100


def test_the_run_says_what_it_will_do(tuned: tuple[Path, Result, list[Event]]) -> None:
    *_, events = tuned
    assert isinstance(events[0], RunStarted)
    assert events[0].problems == (PROBLEM,)
    assert isinstance(events[-1], RunEnded)
    assert events[-1].trials == 3
    assert events[-1].warming_up_s > 0


@pytest.mark.usefixtures("few_blocks")
def test_of_two_batches_the_last_dismisses_the_worker_and_the_first_times_a_default_as_two(
    rogues: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.tuner.planning.weights.BATCH", 1)
    events: list[Event] = []
    told: list[tuple[str, int]] = []

    def tell(what: str) -> None:
        told.append((what, sum(isinstance(event, ProblemDecided) for event in events)))

    dismiss, begin = Crew.dismiss_workers, Crew.begin_block

    def dismissing(crew: Crew) -> None:
        tell("dismissed")
        dismiss(crew)

    def beginning(crew: Crew, job: BlockJob) -> int:
        if len({str(entrant) for entrant in job.entrants}) == 1:
            tell(f"{job.entrants[0].role} as {len(job.entrants)}")
        return begin(crew, job)

    monkeypatch.setattr(Crew, "dismiss_workers", dismissing)
    monkeypatch.setattr(Crew, "begin_block", beginning)
    tune((PROBLEM, Problem("square", {"n": 10_002, "dtype": "float32"})), catalog=rogues, device=CPU,
         database=str(tmp_path / "run.db"), observer=events.append,
         options=TuneOptions(Budget(trials=2), implementations=["rogue.honest", "rogue.chatters"]))  # fmt: skip
    assert told == [("floor as 4", 0), ("candidate as 2", 0), ("dismissed", 1)]


PLUGIN = """
import os
import torch
import registry
from registry.implementation import Implementation
from registry.space import Space

KERNEL_REGISTRY_API = 1


class Stranger(Implementation):
    op = "square"
    name = "stranger.default"
    device_types = frozenset({"cpu"})

    def preference(self, problem, device):
        return 1e9

    def space(self, problem, device):
        return Space()

    def bind(self, problem, config, device, built):
        return lambda outputs, arguments, scratch: torch.mul(arguments[0], arguments[0], out=outputs[0])

    def FAULTY


@registry.implements("square")
def strangers():
    return [Stranger()]
"""


@pytest.mark.parametrize(
    ("faulty", "status"),
    [
        ("variants(self, problem, config, device, signature): raise ValueError('not today')", "error"),
        ("scratch(self, problem, config, device): raise ValueError('not today')", "error"),
        ("bind(self, problem, config, device, built): os.abort()", "crash"),
    ],
)
@pytest.mark.few(1)
def test_the_machines_noise_is_measured_whatever_the_first_default_does(
    no_plugins: None, catalog: Catalog, tmp_path: Path, faulty: str, status: str
) -> None:
    plugin, database = tmp_path / "stranger.py", tmp_path / "run.db"
    plugin.write_text(PLUGIN.replace("FAULTY", faulty))
    catalog.load_file(plugin)
    events: list[Event] = []
    options = TuneOptions(Budget(trials=1), implementations=["stranger.default"])
    results = tune(
        (PROBLEM,), catalog=catalog, device=CPU, database=str(database), options=options, observer=events.append
    )
    assert [result.verdict for result in results] == ["none"]
    assert statuses(events) == {"stranger.default": status}
    assert isinstance(events[-1], RunEnded)
    with Store.open(database) as store:
        (ended,) = store.runs(1)
    assert len(ended.summary["noise"]["single"]) == PAIRS_PER_DECADE, "the copies' pairs, and none of a default"
