"""Which implementations a stored winner has met: its own decision, and one that came from another database."""

from __future__ import annotations

import io
from datetime import timedelta
from pathlib import Path

import pytest

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate
from registry.problem import Problem
from registry.tuner.jobs import Outcome
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.planning.problems import ProblemPlan, plan
from registry.tuner.stored_winners import StandingWinner, StoredWinners, raced_again
from registry.tuner.storing import RunStore
from tuning_db import Decision, Environment, Store
from tuning_db.records import now

CPU = Device.of("cpu")
PROTOCOL = TimingProtocol.of(CPU)
PROBLEM = Problem("square", {"n": 100, "dtype": "float32"})
NAMES = ("rogue.chatters", "rogue.honest", "rogue.zeros")


@pytest.fixture
def rogues(catalog: Catalog) -> Catalog:
    catalog.load_file(Path(__file__).with_name("rogues.py"))
    return catalog


def planned(catalog: Catalog, *names: str) -> ProblemPlan:
    (found,) = plan([PROBLEM], catalog, CPU, names)
    return found


def default(plan: ProblemPlan, name: str) -> Candidate:
    return next(one for one in plan.defaults() if one.implementation.name == name)


def try_(run: RunStore, plan: ProblemPlan, name: str) -> str:
    return run.trial(plan, default(plan, name), Outcome("ok", "", (1.0,), 1.0)).uid


def decide(run: RunStore, plan: ProblemPlan, *finalists: str, trial: str | None = None, **fields: object) -> Decision:
    """``rogue.honest`` wins against the finalists."""
    decision = run.decision(plan, default(plan, "rogue.honest"), trial, median_us=1.0, **fields)
    finals = [
        run.final(default(plan, name), role="candidate", block=0, round=0, position=place, us=2.0)
        for place, name in enumerate(finalists)
    ]
    assert run.publish(decision, finals)
    return decision


def unmet(store: Store, plan: ProblemPlan) -> tuple[str, ...] | None:
    found = StoredWinners(store, Environment(CPU.hardware(), CPU.software()), "cold").standing(plan)
    return None if found is None else found.unmet


@pytest.mark.parametrize("recorded", [True, False], ids=["now", "before runs told their implementations"])
@pytest.mark.few(1)
def test_a_decision_has_met_its_finalists_and_what_was_tried_before(
    rogues: Catalog, store: Store, recorded: bool
) -> None:
    every = planned(rogues, *NAMES)
    run = RunStore(store, CPU, PROTOCOL, {}, plans=(every,) if recorded else ())
    assert unmet(store, every) is None
    trial = try_(run, every, "rogue.honest")
    first = decide(run, every, "rogue.chatters", trial=trial, created=now() - timedelta(seconds=10))
    assert unmet(store, every) == ("rogue.zeros",)
    try_(run, every, "rogue.zeros")
    assert unmet(store, every) == ("rogue.zeros",), "tried later, as before an interrupted run's finals"
    second = decide(run, every, trial=trial, previous=first.uid, verdict="new")
    assert unmet(store, every) == ("rogue.chatters",), "a finalist of another decision, whose winner was out"
    assert unmet(store, planned(rogues, "rogue.honest", "rogue.zeros")) == (), "only what takes part counts"
    decide(run, every, trial=trial, previous=second.uid, verdict="kept")
    assert unmet(store, every) == ("rogue.chatters",)


def test_what_the_winner_before_has_met_counts_where_it_was_raced(rogues: Catalog, store: Store) -> None:
    every, one = planned(rogues, *NAMES), planned(rogues, "rogue.honest")
    run = RunStore(store, CPU, PROTOCOL, {}, plans=(every,))
    trial = [try_(run, every, name) for name in NAMES][1]
    first = decide(run, every, "rogue.chatters", trial=trial)
    alone = RunStore(store, CPU, PROTOCOL, {}, plans=(one,))
    second = decide(alone, one, trial=trial, previous=first.uid, verdict="replaced")
    assert unmet(store, every) == ()
    decide(alone, one, trial=trial, previous=second.uid, verdict="new")
    assert unmet(store, every) == ("rogue.chatters", "rogue.zeros")


def test_what_another_source_of_an_implementation_did_does_not_count(
    rogues: Catalog, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = planned(rogues, *NAMES)
    run = RunStore(store, CPU, PROTOCOL, {}, plans=(every,))
    trial = [try_(run, every, name) for name in NAMES][1]
    decide(run, every, "rogue.chatters", "rogue.zeros", trial=trial)
    assert unmet(store, every) == ()
    changed = default(every, "rogue.zeros").implementation
    monkeypatch.setattr(type(changed), "fingerprint", lambda self: "f" * 64)
    assert unmet(store, every) == ("rogue.zeros",)


@pytest.mark.parametrize("winners_only", [True, False])
@pytest.mark.few(1)
def test_an_imported_winner_has_met_what_its_run_could_try_and_nothing_of_this_database(
    rogues: Catalog, store: Store, tmp_path: Path, winners_only: bool
) -> None:
    every, theirs = planned(rogues, *NAMES), planned(rogues, "rogue.honest", "rogue.chatters")
    with Store.open(tmp_path / "theirs.db") as other:
        run = RunStore(other, CPU, PROTOCOL, {}, plans=(theirs,))
        trial = [try_(run, theirs, name) for name in ("rogue.chatters", "rogue.honest")][1]
        decide(run, theirs, trial=trial)
        sent = io.StringIO()
        other.export(sent, winners_only=winners_only)
    mine = RunStore(store, CPU, PROTOCOL, {}, plans=(every,))
    for name in ("rogue.honest", "rogue.zeros"):
        try_(mine, every, name)
    decide(mine, every, created=now() - timedelta(hours=1))
    store.load(io.StringIO(sent.getvalue()))
    assert unmet(store, every) == ("rogue.zeros",), "its trial here is older, and the importer has not seen it"


@pytest.mark.thorough
def test_an_imported_winner_of_a_run_that_told_nothing_has_met_its_finalists(
    rogues: Catalog, store: Store, tmp_path: Path
) -> None:
    every = planned(rogues, *NAMES)
    with Store.open(tmp_path / "theirs.db") as other:
        run = RunStore(other, CPU, PROTOCOL, {})
        uids = [try_(run, every, name) for name in NAMES]
        decide(run, every, "rogue.chatters", trial=uids[1], baselines={"rogue.chatters": 2.0})
        sent = io.StringIO()
        other.export(sent, winners_only=True)
    store.load(io.StringIO(sent.getvalue()))
    assert unmet(store, every) == ("rogue.zeros",)


def test_one_line_tells_what_is_raced_again(rogues: Catalog, store: Store) -> None:
    every = planned(rogues, *NAMES)
    decision = RunStore(store, CPU, PROTOCOL, {}).decision(every, every.defaults()[0], median_us=1.0)
    standing = [StandingWinner(every, decision, names) for names in (("a.b", "c.d"), ("a.b",), ())]
    assert raced_again(standing) == ("2 problems are raced again, because the stored winner has not met a.b, c.d (1)")
    assert raced_again(standing[2:]) == ""
