"""The finals of a run: who enters, what is stored, and what happens when another run was faster."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from registry.artifact import Artifact, Variant
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate
from registry.implementation import Implementation
from registry.problem import Problem
from registry.tuner.decide.contest import FLOOR, Contest
from registry.tuner.decide.contest_facts import DISTURBED
from registry.tuner.decide.finals import CHANGED, Finals
from registry.tuner.decide.judge import (
    ATTEMPTS,
    BLOCKS,
    FINALISTS,
    INCUMBENT_COPY,
    MOST_BLOCKS,
    PRE_ROUNDS,
    ROUNDS,
    USUAL_IS_KNOWN,
)
from registry.tuner.decide.noise import Noise, Pair
from registry.tuner.events import Event, FinalsStarted, Note, ProbesStarted, Result
from registry.tuner.jobs import BlockJob, Entrant, Outcome, TimedBlock, VerificationJob
from registry.tuner.limits import DEFAULT_SECONDS
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.planning.problems import ProblemPlan, plan
from registry.tuner.search.findings import Finding, Findings
from registry.tuner.storing import RunStore
from tuning_db import Store

from ...tiers import one_of_each

ROGUES = Path(__file__).parents[1] / "rogues.py"
CPU = Device.of("cpu")
PROBLEM = Problem("square", {"n": 20_001, "dtype": "float32"})
SHORT = Problem("square", {"n": 1_001, "dtype": "float32"})
QUIET = Noise(single=(Pair(100.0, 1.001),) * 10)
FLOOR_US = 50.0


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    """One for all tests of the file, which change nothing in it: to make one and to load plugins takes 0.1 s."""
    made = Catalog()
    made.load_file(ROGUES)
    return made


@pytest.fixture(scope="module")
def planned_once(catalog: Catalog) -> ProblemPlan:
    (found,) = plan([PROBLEM], catalog, CPU, ["rogue.honest", "rogue.chatters"])
    return found


@pytest.fixture
def planned(planned_once: ProblemPlan) -> ProblemPlan:
    """Three candidates of rogue.honest (its default comes first) and one of rogue.chatters."""
    return replace(planned_once)  # a plan remembers what it was asked


@pytest.fixture
def planned_short(catalog: Catalog, planned: ProblemPlan) -> ProblemPlan:
    """The same of a smaller problem."""
    (found,) = plan([SHORT], catalog, CPU, [choice.implementation.name for choice in planned.choices])
    return found


@dataclass
class Bench:
    """Blocks with times that the test gives, by ``name(config)``; whatever ``meanwhile`` does, it does in the last."""

    times: Mapping[str, float]
    meanwhile: Callable[[int], None] = lambda attempt: None
    faults: Mapping[str, str] = field(default_factory=dict)
    """Who is found wrong before the blocks, with its status."""
    block_faults: Mapping[str, str] = field(default_factory=dict)
    """Who is found wrong in the blocks, with its fault."""
    jobs: list[BlockJob] = field(default_factory=list)
    verified: list[str] = field(default_factory=list)
    workers: list[bool] = field(default_factory=list)
    dismissed: Callable[[], None] = lambda: pytest.fail("the worker was not to be dismissed")

    def run_blocks(self, jobs: Sequence[BlockJob | VerificationJob]) -> list[TimedBlock | Outcome]:
        blocks = [job for job in jobs if isinstance(job, BlockJob)]
        if len(blocks) < len(jobs):
            return [self._verified(job) for job in jobs if isinstance(job, VerificationJob)]
        self.jobs += blocks
        if self.workers and self.workers[-1]:
            self.meanwhile(len(self.workers) // MOST_BLOCKS)
        return [self._timed(job) for job in blocks]

    def built(self, wanted: Sequence[tuple[Implementation, Variant]]) -> Mapping[str, Artifact]:
        raise NotImplementedError

    def replace_workers(self, *, last: bool) -> None:
        self.workers.append(last)

    def dismiss_workers(self) -> None:
        self.dismissed()

    @property
    def finals(self) -> list[BlockJob]:
        """The blocks, without the pre-final."""
        return [job for job in self.jobs if any(entrant.role == "copy" for entrant in job.entrants)]

    def _verified(self, job: VerificationJob) -> Outcome:
        name = label(job.entrant)
        self.verified.append(name)
        return Outcome(self.faults[name], "told why") if name in self.faults else Outcome("ok")

    def _timed(self, job: BlockJob) -> TimedBlock | Outcome:
        us = [FLOOR_US if entrant.role == "floor" else self.times[label(entrant)] for entrant in job.entrants]
        wobble = [1 + 0.0004 * ((turn * 7) % 5 - 2) for turn in range(job.rounds)]
        times = tuple(tuple(one * wobble[(turn + place) % job.rounds] for turn in range(job.rounds))
                      for place, one in enumerate(us))  # fmt: skip
        # a pre-final does not look at outputs, and who is at fault has no times
        named = ["floor" if one.role == "floor" else label(one) for one in job.entrants]
        faults = tuple(self.block_faults.get(name, "") if job.verify else "" for name in named)
        times = tuple(() if fault else each for each, fault in zip(times, faults, strict=True))
        places = tuple((place,) * len(each) for place, each in enumerate(times))
        return TimedBlock(times, faults, places, 0.0)


def label(one: Entrant | Candidate) -> str:
    name = one.implementation if isinstance(one, Entrant) else one.implementation.name
    return name.removeprefix("rogue.") + "".join(f" {value}" for value in one.config.values())


HONEST = {"honest 1": 100.0, "honest 40": 300.0, "honest 2": 142.0, "chatters": 140.0}


def candidates(planned: ProblemPlan) -> dict[str, Candidate]:
    return {
        label(one): one
        for choice in planned.choices
        for one in (Candidate(choice.implementation, config) for config in choice.configs)
    }


def searched(planned: ProblemPlan, recorder: RunStore, medians: Mapping[str, float]) -> Findings:
    stored = recorder.valid(planned, recorder.winner(planned.op, planned.problem))
    search = Findings(planned, 0, stored)
    for name, candidate in candidates(planned).items():
        if name in medians:
            uid = recorder.trial(planned, candidate, Outcome("ok", median_us=medians[name])).uid
            search.learn(Finding(candidate, "ok", medians[name], False, uid))
    return search


@pytest.fixture
def recorders(store: Store) -> Callable[[], RunStore]:
    """Makes a recorder of the one store for every run that is wanted."""
    return lambda: RunStore(store, CPU, TimingProtocol.of(CPU), {})


def decide(
    planned: ProblemPlan, recorder: RunStore, bench: Bench, medians: Mapping[str, float] = HONEST
) -> tuple[Result, list[Event], Finals]:
    events: list[Event] = []
    finals = Finals(recorder, TimingProtocol.of(CPU), events.append, QUIET)
    search = searched(planned, recorder, medians)
    (result,) = finals.run([search], bench)
    return result, events, finals


def winner(recorder: RunStore, planned: ProblemPlan) -> str:
    decision = recorder.winner(planned.op, PROBLEM)
    assert decision is not None
    found = recorder.valid(planned, decision)
    assert found is not None
    return label(found)


def publish(planned: ProblemPlan, recorder: RunStore, name: str) -> None:
    """What another run does: finals of its own, against whatever is stored now."""
    previous = recorder.winner(planned.op, PROBLEM)
    decision = recorder.decision(
        planned, candidates(planned)[name], median_us=90.0, verdict="replaced" if previous else "new",
        previous=previous.uid if previous else None,
    )  # fmt: skip
    assert recorder.publish(decision, [])


def test_the_default_and_its_copy_meet_two_challengers_in_fresh_processes(
    planned: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    bench = Bench(HONEST)
    recorder = recorders()
    result, events, _ = decide(planned, recorder, bench)
    assert len(bench.jobs) == 1 + MOST_BLOCKS
    # "honest 40" is three times slower than the fastest; the incumbent enters to be compared with
    assert [label(entrant) for entrant in bench.jobs[0].entrants] == ["chatters", "honest 2", "honest 1"]
    assert bench.workers == [False] * (MOST_BLOCKS - 1) + [True]
    assert [job.rounds for job in bench.jobs] == [PRE_ROUNDS, *[ROUNDS] * MOST_BLOCKS]
    for number, job in enumerate(bench.finals):
        roles = sorted((entrant.role, label(entrant)) for entrant in job.entrants if entrant.role != "floor")
        assert roles == [
            ("candidate", "chatters"), ("candidate", "honest 1"), ("candidate", "honest 2"), ("copy", "honest 1"),
        ]  # fmt: skip
        assert sum(entrant.role == "floor" for entrant in job.entrants) == (number == 0)
    assert len({job.seed for job in bench.jobs}) == len(bench.jobs)
    assert (result.verdict, label(candidates(planned)["honest 1"])) == ("new", "honest 1")
    assert winner(recorder, planned) == "honest 1"
    assert [event for event in events if isinstance(event, FinalsStarted)] == [FinalsStarted(1, MOST_BLOCKS)]


def test_workers_are_given_the_longest_blocks_first_and_results_keep_the_order_of_problems(
    planned: ProblemPlan, planned_short: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    recorder, bench = recorders(), Bench(HONEST)
    finals = Finals(recorder, TimingProtocol.of(CPU), lambda _: None, QUIET)
    shorter = {name: us / 2 for name, us in HONEST.items()}
    searches = [searched(planned_short, recorder, shorter), searched(planned, recorder, HONEST)]
    results = list(finals.run(searches, bench))
    assert [result.problem for result in results] == [SHORT, PROBLEM]
    sizes = [job.dims["n"] for job in bench.jobs]
    assert sizes == [PROBLEM.dims["n"], SHORT.dims["n"]] * (len(sizes) // 2)
    assert {result.verdict for result in results} == {"new"}


def test_finals_for_which_time_is_short_end_after_three_blocks_and_decide(
    planned: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    recorder, bench, asked, events = recorders(), Bench(HONEST), list[int](), list[Event]()

    def room_for_two(over: int) -> bool:
        asked.append(over)
        return False

    finals = Finals(recorder, TimingProtocol.of(CPU), events.append, QUIET)
    search = searched(planned, recorder, HONEST)
    (result,) = finals.run([search], bench, room_for_two=room_for_two)
    assert asked == [BLOCKS - 1], "three blocks are held in any case"
    assert len(bench.finals) == BLOCKS
    assert bench.workers == [False, False, True], "the last one ends with its block"
    assert any(job.verify for job in bench.finals)
    assert (result.verdict, winner(recorder, planned)) == ("new", "honest 1")
    (told,) = [event.message for event in events if isinstance(event, Note)]
    assert told == f"finals end after block 3 of {MOST_BLOCKS}: the time limit has no room for more"


def test_a_challenger_that_is_behind_in_the_pre_final_does_not_go_on(
    planned: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    bench = Bench({**HONEST, "honest 2": 150.0})
    decide(planned, recorders(), bench)
    assert {label(entrant) for entrant in bench.jobs[0].entrants} == {"chatters", "honest 2", "honest 1"}
    for job in bench.finals:
        assert {label(entrant) for entrant in job.entrants if entrant.role != "floor"} == {"chatters", "honest 1"}


def test_who_takes_part_was_met_with_all_probes_once(planned: ProblemPlan, recorders: Callable[[], RunStore]) -> None:
    search = searched(planned, recorders(), HONEST)
    search.believe(candidates(planned)["honest 1"])  # as after a trial that has met them
    bench, events = Bench(HONEST), list[Event]()
    list(Finals(recorders(), TimingProtocol.of(CPU), events.append, QUIET).run([search], bench))
    assert bench.verified == ["chatters", "honest 2"]
    assert [event for event in events if isinstance(event, ProbesStarted)] == [ProbesStarted(2)]


@pytest.mark.parametrize("status", one_of_each(["wrong_result", "crash"]))
def test_a_challenger_that_is_found_wrong_gives_its_place_to_the_next(
    planned: ProblemPlan, recorders: Callable[[], RunStore], status: str
) -> None:
    fast = {"honest 1": 100.0, "honest 2": 82.0, "honest 40": 81.0, "chatters": 80.0}
    recorder, bench = recorders(), Bench(fast, faults={"chatters": status})
    result, events, _ = decide(planned, recorder, bench, fast)
    assert bench.verified == ["honest 1", "chatters", "honest 40", "honest 2"]
    assert {label(one) for job in bench.finals for one in job.entrants if one.role == "candidate"} == {
        "honest 1", "honest 2", "honest 40",
    }  # fmt: skip
    assert winner(recorder, planned) == "honest 40"
    notes = [event.message for event in events if isinstance(event, Note)]
    assert notes == [f"{PROBLEM}: rogue.chatters() is out of the finals: {status}: told why"]
    assert result.statuses == {"ok": 3, status: 1}
    # a later run knows: of what is wrong for good as of any trial, while a crash may have been bad luck
    known = {label(one): trial.status for one, trial in recorders().known_trials(planned)}
    assert known == dict.fromkeys(fast, "ok") | ({"chatters": status} if status == "wrong_result" else {})


def test_an_incumbent_that_is_found_wrong_is_replaced(planned: ProblemPlan, recorders: Callable[[], RunStore]) -> None:
    recorder, fast = recorders(), {**HONEST, "chatters": 80.0, "honest 2": 82.0}
    decide(planned, recorder, Bench(fast), fast)
    assert winner(recorder, planned) == "chatters"
    result, _, _ = decide(planned, recorder, Bench(HONEST, faults={"chatters": "wrong_result"}))
    assert (result.verdict, winner(recorder, planned)) == ("new", "honest 1")
    assert result.reason == "the stored winner rogue.chatters was out: wrong_result"


def test_where_all_are_found_wrong_there_is_no_winner(planned: ProblemPlan, recorders: Callable[[], RunStore]) -> None:
    bench = Bench(HONEST, faults=dict.fromkeys(HONEST, "wrong_result"))
    result, _, _ = decide(planned, recorders(), bench)
    assert (result.verdict, result.reason, bench.finals) == ("none", "none is right", [])
    assert result.statuses == {"wrong_result": len(HONEST)}


def test_entrants_are_set_up_in_another_order_in_every_process(
    planned: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    bench = Bench(HONEST)
    decide(planned, recorders(), bench)
    orders = {
        tuple(f"{entrant.role} {label(entrant)}" for entrant in job.entrants if entrant.role != "floor")
        for job in bench.finals
    }
    assert len(orders) == MOST_BLOCKS


def test_the_decision_keeps_the_ratio_to_the_default_and_every_round(
    planned: ProblemPlan, recorders: Callable[[], RunStore], store: Store
) -> None:
    recorder = recorders()
    fast = {**HONEST, "chatters": 80.0, "honest 2": 82.0}
    result, _, finals = decide(planned, recorder, Bench(fast), fast)
    decision = recorder.winner(planned.op, PROBLEM)
    assert decision is not None
    assert decision.default_ratio is not None
    assert decision.default_ratio.value == pytest.approx(1.25, rel=1e-2)
    assert decision.default_ratio.low < 1.25 < decision.default_ratio.high
    assert (result.ratio, result.low, result.high) == (decision.ratio, decision.lo, decision.hi)
    assert decision.baselines == pytest.approx({"rogue.honest": 82 / 80}, rel=1e-2)
    assert decision.floor_us == pytest.approx(FLOOR_US, rel=1e-2)
    entered = 1 + 1 + FINALISTS
    assert len(store.finals(decision.uid)) == ROUNDS * (MOST_BLOCKS * entered + 1)
    assert len(finals.noise.single) == len(QUIET.single) + MOST_BLOCKS
    assert len(finals.noise.decided) == 1


def test_a_tie_says_with_whom(planned: ProblemPlan, recorders: Callable[[], RunStore]) -> None:
    even = {**HONEST, "chatters": 100.0}
    recorder = recorders()
    result, _, _ = decide(planned, recorder, Bench(even), even)
    assert result.ties == ("rogue.chatters",)
    result, _, _ = decide(planned, recorders(), Bench(even), even)
    assert (result.verdict, result.ties) == ("tie", ("rogue.chatters",))
    stored = recorder.winner(planned.op, PROBLEM)
    assert stored is not None
    assert stored.ties == ("rogue.chatters",)


def test_a_stored_winner_meets_the_default_too(planned: ProblemPlan, recorders: Callable[[], RunStore]) -> None:
    other, recorder = recorders(), recorders()
    publish(planned, other, "chatters")
    bench = Bench({**HONEST, "chatters": 90.0, "honest 1": 130.0, "honest 2": 85.0, "honest 40": 87.0})
    result, _, _ = decide(planned, recorder, bench, bench.times)
    assert {label(entrant) for entrant in bench.finals[-1].entrants} == {
        "chatters", "honest 2", "honest 40", "honest 1"
    }  # fmt: skip
    assert (result.verdict, result.implementation) == ("replaced", "rogue.honest")
    decision = recorder.winner(planned.op, PROBLEM)
    assert decision is not None
    assert decision.default_ratio is not None
    assert decision.default_ratio.value == pytest.approx(130 / 85, rel=1e-2)
    assert decision.ratio == pytest.approx(90 / 85, rel=1e-2)


def test_when_another_run_publishes_first_its_winner_has_to_be_beaten(
    planned: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    other, recorder = recorders(), recorders()
    bench = Bench(
        {**HONEST, "chatters": 80.0},
        lambda attempt: publish(planned, other, "honest 2") if attempt == 1 else None,
    )
    result, events, _ = decide(planned, recorder, bench, bench.times)
    assert len(bench.finals) == 2 * MOST_BLOCKS
    again = bench.finals[-1].entrants
    assert {(entrant.role, label(entrant)) for entrant in again} == {
        ("candidate", "honest 2"), ("copy", "honest 2"), ("candidate", "chatters"), ("candidate", "honest 1"),
    }  # fmt: skip
    assert (result.verdict, result.implementation) == ("replaced", "rogue.chatters")
    assert result.incumbent is not None
    assert result.incumbent.stored
    assert winner(recorder, planned) == "chatters"
    decision = recorder.winner(planned.op, PROBLEM)
    assert decision is not None
    assert decision.ratio == pytest.approx(142 / 80, rel=1e-2)
    assert any(isinstance(event, Note) and "finals against its winner follow" in event.message for event in events)


def test_a_winner_that_another_run_found_better_stays(planned: ProblemPlan, recorders: Callable[[], RunStore]) -> None:
    other, recorder = recorders(), recorders()
    bench = Bench(HONEST, lambda attempt: publish(planned, other, "chatters") if attempt == 1 else None)
    times = {**HONEST, "chatters": 60.0}
    result, _, _ = decide(planned, recorder, Bench(times, bench.meanwhile), HONEST)
    assert (result.verdict, result.implementation) == ("kept", "rogue.chatters")
    assert winner(recorder, planned) == "chatters"


@pytest.mark.thorough
def test_two_runs_that_find_the_same_agree_without_more_finals(
    planned: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    other, recorder = recorders(), recorders()
    bench = Bench(HONEST, lambda attempt: publish(planned, other, "honest 1"))
    result, events, _ = decide(planned, recorder, bench)
    assert (result.verdict, result.config) == ("kept", {"repeats": 1})
    assert len(bench.finals) == MOST_BLOCKS
    assert not [event for event in events if isinstance(event, Note)]


@pytest.mark.thorough
def test_after_three_finals_the_other_runs_winner_stays(
    planned: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    other, recorder = recorders(), recorders()
    turns = ["honest 2", "honest 40", "honest 2"]
    bench = Bench({**HONEST, "chatters": 80.0}, lambda attempt: publish(planned, other, turns[attempt - 1]))
    result, events, _ = decide(planned, recorder, bench, bench.times)
    assert len(bench.finals) == ATTEMPTS * MOST_BLOCKS
    assert (result.verdict, result.config) == ("kept", {"repeats": 2})
    assert winner(recorder, planned) == "honest 2"
    assert any(isinstance(event, Note) and "its winner stays" in event.message for event in events)


@pytest.mark.parametrize(("relative", "wins"), [(0.001, "rogue.chatters"), (0.2, "rogue.honest")])
@pytest.mark.few(1)
def test_what_earlier_runs_know_of_noise_counts_and_is_not_stored_again(
    planned: ProblemPlan, recorders: Callable[[], RunStore], relative: float, wins: str
) -> None:
    gain = {**HONEST, "chatters": 97.0}
    earlier = Noise(decided=(Pair(100.0, 1 + relative),) * 10)
    recorder, bench = recorders(), Bench(gain)
    finals = Finals(recorder, TimingProtocol.of(CPU), lambda event: None, QUIET, earlier)
    (result,) = finals.run([searched(planned, recorder, gain)], bench)
    assert result.implementation == wins
    assert len(finals.noise.decided) == 1


def test_the_worker_is_free_after_the_last_block_of_each_finals_and_before_they_are_judged(
    planned: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    other, recorder = recorders(), recorders()
    bench = Bench(
        {**HONEST, "chatters": 80.0}, lambda attempt: publish(planned, other, "honest 2") if attempt == 1 else None
    )
    finals = Finals(recorder, TimingProtocol.of(CPU), lambda event: None, QUIET)
    bench.dismissed = lambda: free.append((len(bench.finals), winner(recorder, planned)))
    free: list[tuple[int, str]] = []
    (result,) = finals.run([searched(planned, recorder, bench.times)], bench, dismiss=True)
    assert result.implementation == "rogue.chatters"
    assert free == [(MOST_BLOCKS, "honest 2"), (2 * MOST_BLOCKS, "honest 2")]


@pytest.mark.parametrize(("problems", "blocks"), [(1, MOST_BLOCKS), (4, BLOCKS + 1), (USUAL_IS_KNOWN, BLOCKS)])
@pytest.mark.few(1)
def test_few_problems_meet_in_more_processes(
    planned: ProblemPlan, recorders: Callable[[], RunStore], problems: int, blocks: int
) -> None:
    recorder, bench, events = recorders(), Bench(HONEST), list[Event]()
    finals = Finals(recorder, TimingProtocol.of(CPU), events.append, QUIET)
    searches = [searched(planned, recorder, HONEST) for _ in range(problems)]
    assert len(list(finals.run(searches, bench))) == problems
    assert bench.workers[:blocks] == [False] * (blocks - 1) + [True]
    assert next(event for event in events if isinstance(event, FinalsStarted)) == FinalsStarted(problems, blocks)


@pytest.mark.parametrize(
    ("us", "blocks", "earlier"),
    one_of_each(
        [(*case, earlier) for case in ((100.0, BLOCKS), (5.0, MOST_BLOCKS)) for earlier in (True, False)],
        lambda us, blocks, earlier: us,
    ),
)
@pytest.mark.few(1)
def test_known_noise_of_such_durations_spares_processes(
    planned: ProblemPlan, recorders: Callable[[], RunStore], us: float, blocks: int, earlier: bool
) -> None:
    known, recorder, bench = Noise(decided=(Pair(us, 1.001),) * USUAL_IS_KNOWN), recorders(), Bench(HONEST)
    noise = (QUIET, known) if earlier else (QUIET + known, None)
    finals = Finals(recorder, TimingProtocol.of(CPU), lambda event: None, *noise)
    list(finals.run([searched(planned, recorder, HONEST)], bench))
    assert bench.workers == [False] * (blocks - 1) + [True]


@pytest.mark.parametrize(("short", "first"), one_of_each([(1, False), (1, True), (2, False)]))
@pytest.mark.thorough
def test_each_problem_meets_in_as_many_processes_as_its_own_decade_needs(
    planned: ProblemPlan,
    planned_short: ProblemPlan,
    recorders: Callable[[], RunStore],
    monkeypatch: pytest.MonkeyPatch,
    short: int,
    first: bool,
) -> None:
    monkeypatch.setattr("registry.tuner.planning.twin.LARGE_BYTES", 0)
    recorder, bench, events = recorders(), Bench(HONEST), list[Event]()
    few = [searched(planned_short, recorder, {name: us / 20 for name, us in HONEST.items()}) for _ in range(short)]
    many = [searched(planned, recorder, HONEST) for _ in range(USUAL_IS_KNOWN)]
    finals = Finals(recorder, TimingProtocol.of(CPU), events.append, QUIET)
    list(finals.run([*few, *many] if first else [*many, *few], bench))
    assert bench.workers == [False] * (MOST_BLOCKS - 1) + [True]
    for problem, count, blocks in ((SHORT, short, MOST_BLOCKS), (PROBLEM, USUAL_IS_KNOWN, BLOCKS)):
        verified = [job.verify for job in bench.finals if job.dims == problem.dims]
        assert (len(verified), sum(verified)) == (count * blocks, count)
    assert next(event for event in events if isinstance(event, FinalsStarted)).blocks == MOST_BLOCKS
    assert len(finals.noise.decided) == short + USUAL_IS_KNOWN


@pytest.mark.parametrize(("known_us", "blocks"), [(100.0, BLOCKS), (5.0, MOST_BLOCKS)])
@pytest.mark.few(1)
def test_the_incumbents_duration_and_not_the_fastests_says_what_is_known(
    planned: ProblemPlan, recorders: Callable[[], RunStore], known_us: float, blocks: int
) -> None:
    times = {**HONEST, "chatters": 5.0}
    recorder, bench = recorders(), Bench(times)
    known = Noise(decided=(Pair(known_us, 1.001),) * USUAL_IS_KNOWN)
    finals = Finals(recorder, TimingProtocol.of(CPU), lambda event: None, QUIET, known)
    list(finals.run([searched(planned, recorder, times)], bench))
    assert len(bench.finals) == blocks


def test_a_kept_incumbent_that_was_not_tried_has_the_kernels_of_its_decision(
    planned: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    """Its trial, of an earlier version, may have a hash that today's kernels never have."""
    first = recorders()
    honest = candidates(planned)["honest 1"]
    trial = first.trial(planned, honest, Outcome("ok", median_us=100.0))
    told = first.decision(planned, honest, trial.uid, artifact_hash="", median_us=100.0, verdict="new")
    assert first.publish(told, [])
    with closing(sqlite3.connect(first._store.url.removeprefix("sqlite:///"))) as database:
        database.execute("UPDATE trial SET artifact_hash = 'of an earlier version'")
        database.commit()
    second = recorders()
    decide(planned, second, Bench(HONEST), {name: us for name, us in HONEST.items() if name != "honest 1"})
    kept = second.winner(planned.op, PROBLEM)
    assert kept is not None
    assert (kept.uid == told.uid, kept.candidate.config, kept.trial_uid) == (False, honest.config, trial.uid)
    assert kept.artifact_hash == told.artifact_hash == ""
    assert second.valid(planned, kept) == honest


def test_an_incumbent_that_was_not_searched_takes_what_its_decision_says(
    planned: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    other, recorder = recorders(), recorders()
    publish(planned, other, "chatters")
    decision = recorder.winner(planned.op, PROBLEM)
    search = searched(planned, recorder, {"honest 1": 100.0})
    assert Contest(search, candidates(planned)["chatters"], decision, []).incumbent_us == 90.0
    assert Contest(search, candidates(planned)["honest 1"], decision, []).incumbent_us == 100.0


def test_a_large_problem_is_verified_in_the_last_block_only(
    planned: ProblemPlan, recorders: Callable[[], RunStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(HONEST)
    monkeypatch.setattr("registry.tuner.planning.twin.LARGE_BYTES", 0)
    decide(planned, recorders(), bench)
    assert sorted(job.verify for job in bench.finals) == [False] * (MOST_BLOCKS - 1) + [True]


def test_nobody_can_tell_in_which_block_a_large_problem_is_verified(
    planned: ProblemPlan, recorders: Callable[[], RunStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.tuner.planning.twin.LARGE_BYTES", 0)
    drawn = list[int]()
    for block in range(MOST_BLOCKS):
        bench = Bench(HONEST)
        monkeypatch.setattr("secrets.randbelow", lambda most, block=block: drawn.append(most) or block)
        decide(planned, recorders(), bench)
        assert [job.verify for job in bench.finals] == [number == block for number in range(MOST_BLOCKS)]
    assert set(drawn) == {MOST_BLOCKS}


def test_what_a_lost_block_should_have_verified_a_later_one_verifies(
    planned: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    contest = Contest(searched(planned, recorders(), HONEST), candidates(planned)["honest 1"], None, [])
    contest.fix_blocks(5)
    contest.rounds, contest.verified = 1, 3
    contest.lose(2)
    assert contest.verified == 3
    contest.lose(3)
    assert (contest.verified, contest.wanted) == (4, 5)
    contest.lose(4)
    assert (contest.verified, contest.wanted) == (5, 6)
    assert not contest.unverified
    contest.lose(5)
    assert contest.wanted == 6
    assert contest.unverified
    contest.end_after(3)
    assert contest.verified == 2


class LosesThoseThatVerify(Bench):
    """Bench whose first blocks that are to verify, so many, are lost."""

    left = 0

    def _timed(self, job: BlockJob) -> TimedBlock | Outcome:
        if job.verify and self.left:
            self.left -= 1
            return Outcome("crash", "the worker died")
        return super()._timed(job)


@pytest.mark.parametrize(("lost", "blocks", "verdict"), [(1, MOST_BLOCKS + 1, "new"), (2, MOST_BLOCKS + 1, "none")])
def test_nothing_is_published_of_which_no_block_was_verified(
    planned: ProblemPlan, recorders: Callable[[], RunStore], monkeypatch: pytest.MonkeyPatch,
    lost: int, blocks: int, verdict: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("registry.tuner.planning.twin.LARGE_BYTES", 0)
    monkeypatch.setattr("secrets.randbelow", lambda most: most - 1)
    recorder, bench = recorders(), LosesThoseThatVerify(HONEST)
    bench.left = lost
    result, events, _ = decide(planned, recorder, bench)
    assert result.verdict == verdict
    assert len(bench.finals) == blocks
    assert [job.verify for job in bench.finals][-2:] == [True, True]
    assert (recorder.winner(planned.op, PROBLEM) is None) is (verdict == "none")
    twice = "the block in which its entrants are verified was lost twice (the worker died); run again to decide"
    assert any(isinstance(event, Note) and twice in event.message for event in events) is (lost == 2)


def test_disturbed_finals_decide_nothing(planned: ProblemPlan, recorders: Callable[[], RunStore]) -> None:
    recorder = recorders()
    slow = {name: us * (DISTURBED["cpu"] + 0.1) for name, us in HONEST.items()}
    result, events, _ = decide(planned, recorder, Bench(slow), HONEST)
    assert result.verdict == "none"
    assert recorder.winner(planned.op, PROBLEM) is None
    assert any(isinstance(event, Note) and "disturbed" in event.message for event in events)
    result, _, _ = decide(planned, recorder, Bench({name: us * 1.4 for name, us in HONEST.items()}), HONEST)
    assert result.verdict == "new"


def test_lost_blocks_and_problems_without_a_right_candidate_are_told(
    planned: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    recorder = recorders()
    events: list[Event] = []
    finals = Finals(recorder, TimingProtocol.of(CPU), events.append)
    lost = searched(planned, recorder, {})
    held = searched(planned, recorder, {"honest 1": 100.0, "honest 2": 150.0})

    class Crashing(Bench):
        def _timed(self, job: BlockJob) -> TimedBlock | Outcome:
            return Outcome("crash", "the worker died")

    results = list(finals.run([lost, held], Crashing({})))
    assert [result.verdict for result in results] == ["none", "none"]
    assert sum("was lost" in event.message for event in events if isinstance(event, Note)) == MOST_BLOCKS
    assert recorder.winner(planned.op, PROBLEM) is None


def test_who_is_wrong_in_one_block_wins_nothing_however_fast_in_the_others(
    planned: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    recorder = recorders()
    search = searched(planned, recorder, {"honest 1": 100.0, "honest 2": 50.0})
    incumbent, challenger = (candidates(planned)[name] for name in ("honest 1", "honest 2"))
    contest = Contest(search, incumbent, None, [challenger])
    contest.refuse(challenger.key, "out_of_memory: no room left")
    assert contest.challenged_by == [challenger.key]
    contest.refuse(challenger.key, "wrong_result: after timing: element 3 is 1, expected 2")
    assert contest.challenged_by == []
    contest.refuse(FLOOR, "error: a process that another has changed")
    assert [(one.key, outcome.message) for one, outcome in contest.found_wrong] == [
        (challenger.key, "after timing: element 3 is 1, expected 2")
    ]
    contest.refuse(INCUMBENT_COPY, "nondeterministic: two runs differ")
    assert incumbent.key in contest.refused


FAST = {"honest 1": 300.0, "honest 40": 150.0, "honest 2": 82.0, "chatters": 80.0}
WRONG = "wrong_result: after timing: element 3 is 1, expected 2"


def test_where_the_finalists_are_found_wrong_in_the_blocks_those_behind_them_are_raced(
    planned: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    recorder, bench = recorders(), Bench(FAST, block_faults={"chatters": WRONG, "honest 2": WRONG})
    result, events, _ = decide(planned, recorder, bench, FAST)
    assert (result.verdict, winner(recorder, planned)) == ("new", "honest 40")
    decision = recorder.winner(planned.op, PROBLEM)
    assert decision is not None
    assert decision.baselines == {}, "what is wrong has no time"
    assert result.statuses == {"ok": 2, "wrong_result": 2}
    assert len(bench.finals) == 2 * MOST_BLOCKS
    assert {label(one) for one in bench.finals[-1].entrants} == {"honest 1", "honest 40"}
    told = [event.message for event in events if isinstance(event, Note) and "follow" in event.message]
    assert told == [f"{PROBLEM}: finalists were found wrong; finals of those behind them follow"]
    known = {label(one): trial.status for one, trial in recorders().known_trials(planned)}
    assert known == {"honest 1": "ok", "honest 40": "ok", "honest 2": "wrong_result", "chatters": "wrong_result"}


def test_where_nobody_behind_the_finalists_is_faster_than_who_won_no_finals_follow(
    planned: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    recorder, bench = recorders(), Bench(FAST, block_faults={"chatters": WRONG})
    _, events, _ = decide(planned, recorder, bench, FAST)
    assert (winner(recorder, planned), len(bench.finals)) == ("honest 2", MOST_BLOCKS)
    assert not any("follow" in event.message for event in events if isinstance(event, Note))


@pytest.mark.thorough
def test_an_incumbent_that_is_found_wrong_in_the_blocks_is_replaced_by_the_next(
    planned: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    recorder, bench = recorders(), Bench(HONEST, block_faults={"honest 1": WRONG})
    result, _, _ = decide(planned, recorder, bench)
    assert (result.verdict, winner(recorder, planned)) == ("new", "chatters")
    assert result.statuses == {"ok": 3, "wrong_result": 1}


def test_an_error_of_all_in_a_process_refutes_nobody_and_no_finals_follow(
    planned: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    """Whoever has changed a process is not known: all who were in it, and the copy floor, get the same fault."""
    recorder = recorders()
    bench = Bench(FAST, block_faults=dict.fromkeys([*FAST, "floor"], "error: somebody replaced torch.empty"))
    result, events, _ = decide(planned, recorder, bench, FAST)
    assert result.reason.startswith("undecided: its incumbent is wrong (error: somebody")
    assert len(bench.finals) == MOST_BLOCKS
    assert result.statuses == {"ok": 4}
    assert not any("follow" in event.message for event in events if isinstance(event, Note))


def test_where_all_are_found_wrong_in_the_blocks_nothing_wins(
    planned: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    recorder, bench = recorders(), Bench(FAST, block_faults=dict.fromkeys(FAST, WRONG))
    result, _, _ = decide(planned, recorder, bench, FAST)
    assert result.verdict == "none"
    assert result.reason.startswith("undecided: its incumbent is wrong")
    assert recorder.winner(planned.op, PROBLEM) is None


@pytest.mark.parametrize("status", one_of_each(["wrong_result", "timeout", "out_of_memory"]))
def test_a_stored_winner_that_failed_in_the_search_is_replaced_without_a_tie_and_the_reason_is_told(
    planned: ProblemPlan, recorders: Callable[[], RunStore], status: str
) -> None:
    other, recorder = recorders(), recorders()
    publish(planned, other, "chatters")
    search = searched(planned, recorder, {name: us for name, us in HONEST.items() if name != "chatters"})
    search.learn(Finding(candidates(planned)["chatters"], status, None, False, "uid"))
    events, bench = list[Event](), Bench({**HONEST, "honest 2": 100.0})
    finals = Finals(recorder, TimingProtocol.of(CPU), events.append, QUIET)
    (result,) = finals.run([search], bench)
    assert result is not None
    assert (result.verdict, result.implementation) == ("new", "rogue.honest")
    assert result.reason == f"the stored winner rogue.chatters was out: {status}"
    assert any(isinstance(event, Note) and event.message.endswith(result.reason) for event in events)
    decision = recorder.winner(planned.op, PROBLEM)
    assert decision is not None
    assert (decision.verdict, decision.previous is not None) == ("new", True)
    assert result.incumbent is not None
    assert not result.incumbent.stored


def test_a_stored_winner_of_other_source_is_no_incumbent_even_if_its_name_is_the_defaults(
    planned: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    recorder = recorders()
    stale = recorder.decision(planned, candidates(planned)["honest 1"], median_us=90.0, verdict="new")
    assert recorder.publish(replace(stale, candidate=replace(stale.candidate, fingerprint="another")), [])
    result, _, _ = decide(planned, recorder, Bench(HONEST))
    assert result is not None
    assert (result.verdict, result.config) == ("new", {"repeats": 1})
    assert result.reason == f"the stored winner rogue.honest was out: {CHANGED}"
    assert result.incumbent is not None
    assert not result.incumbent.stored


@pytest.mark.parametrize("tried", [True, False])
@pytest.mark.few(1)
def test_what_another_run_published_during_the_search_has_to_be_beaten(
    planned: ProblemPlan, recorders: Callable[[], RunStore], tried: bool
) -> None:
    other, recorder = recorders(), recorders()
    medians = HONEST if tried else {name: us for name, us in HONEST.items() if name != "chatters"}
    search, bench = searched(planned, recorder, medians), Bench({**HONEST, "chatters": 80.0})
    publish(planned, other, "chatters")
    finals = Finals(recorder, TimingProtocol.of(CPU), lambda event: None, QUIET)
    (result,) = finals.run([search], bench)
    assert (result.verdict, result.implementation) == ("kept", "rogue.chatters")
    assert result.incumbent is not None
    assert result.incumbent.stored


def test_a_winner_that_is_beaten_or_stays_has_no_reason(
    planned: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    recorder = recorders()
    first, _, _ = decide(planned, recorder, Bench(HONEST))
    second, _, _ = decide(planned, recorder, Bench(HONEST))
    assert [result.verdict for result in (first, second)] == ["new", "kept"]
    assert [result.reason for result in (first, second)] == ["", ""]


def test_without_a_winner_the_reason_is_the_real_one(planned: ProblemPlan, recorders: Callable[[], RunStore]) -> None:
    slow = Bench({name: us * (DISTURBED["cpu"] + 0.1) for name, us in HONEST.items()})
    reasons = []
    for medians in ({}, HONEST):
        result, _, _ = decide(planned, recorders(), slow, medians)

        assert result.verdict == "none"
        reasons.append(result.reason)
    assert reasons[0] == "none is right"
    assert reasons[1].startswith("undecided: its finals were disturbed: ")


def slow(us: float) -> dict[str, float]:
    """Times in µs of which the incumbent's is ``us``."""
    return {name: us / 100 * value for name, value in {**HONEST, "chatters": 99.0, "honest 2": 98.0}.items()}


@pytest.mark.parametrize("us", [1e4, 1e5, 5e5])
@pytest.mark.few(1)
def test_the_finals_of_a_slow_problem_have_as_many_rounds_as_its_seconds_allow(
    planned: ProblemPlan, recorders: Callable[[], RunStore], us: float
) -> None:
    times = slow(us)
    bench = Bench(times)
    decide(planned, recorders(), bench, times)
    finals_us = sum(job.rounds * sum(entered(job, times)) for job in bench.finals)
    early_us = sum(job.rounds * sum(entered(job, times)) for job in bench.jobs if job not in bench.finals)
    rounds = {job.rounds for job in bench.finals}
    assert finals_us <= DEFAULT_SECONDS * 1e6 or rounds == {1}
    assert early_us <= 0.3 * DEFAULT_SECONDS * 1e6
    assert len(rounds) == 1
    assert (rounds == {ROUNDS}) == (us == 1e4)


def test_where_one_round_does_not_fit_the_fastest_challenger_meets_the_incumbent_in_three(
    planned: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    times = slow(1e7)
    bench = Bench(times)
    result, _, _ = decide(planned, recorders(), bench, times)
    assert [job.rounds for job in bench.jobs] == [1] * BLOCKS, "and there is no pre-final"
    entrants = {label(entrant) for job in bench.jobs for entrant in job.entrants if entrant.role != "floor"}
    assert entrants == {"honest 1", "honest 2"}
    assert sorted(job.verify for job in bench.jobs) == [False] * (BLOCKS - 1) + [True]
    assert result.verdict == "new"


def test_without_a_pre_final_nobody_enters_who_is_far_behind_in_the_search(
    planned: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    times = {**slow(2e6), "chatters": 2.5e6, "honest 40": 3e6}
    bench = Bench(times)
    decide(planned, recorders(), bench, times)
    entrants = {label(entrant) for job in bench.jobs for entrant in job.entrants if entrant.role != "floor"}
    assert entrants == {"honest 1", "honest 2"}


def entered(job: BlockJob, times: Mapping[str, float]) -> list[float]:
    return [times[label(entrant)] for entrant in job.entrants if entrant.role != "floor"]


def test_who_is_far_faster_in_the_finals_than_in_the_search_does_not_win(
    planned: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    """Unlike the others it then does less there; where all are faster, the search was disturbed."""
    searched_us = {**HONEST, "honest 2": 102.0, "chatters": 103.0}
    times = {**searched_us, "chatters": 103.0 / (DISTURBED["cpu"] + 0.1)}
    result, events, _ = decide(planned, recorders(), Bench(times), searched_us)
    assert result.implementation == "rogue.honest"
    (told,) = [event.message for event in events if isinstance(event, Note) and "out of the finals" in event.message]
    assert "20.2 µs in the finals for what took 103 µs in the search" in told


def test_finals_in_which_everybody_is_faster_are_believed(
    planned: ProblemPlan, recorders: Callable[[], RunStore]
) -> None:
    searched_us = {name: us * (DISTURBED["cpu"] + 1) for name, us in HONEST.items()}
    result, events, _ = decide(planned, recorders(), Bench({**HONEST, "chatters": 80.0}), searched_us)
    assert result.implementation == "rogue.chatters"
    assert not any(isinstance(event, Note) and "out of the finals" in event.message for event in events)
