"""What a run sees of other runs on the same database."""

from __future__ import annotations

import sqlite3
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from registry.backends.cpp import CppImplementation, CppKernel
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate
from registry.implementation import Launch
from registry.problem import Problem
from registry.space import Config
from registry.tuner.jobs import Outcome
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.patience import Patience
from registry.tuner.planning.problems import ProblemPlan, plan
from registry.tuner.storing import RunStore
from tuning_db import LostDatabaseError, MovedDatabaseError, Store, Trial, TuningDBError

CPU = Device.of("cpu")
PROTOCOL = TimingProtocol.of(CPU)


@pytest.fixture
def plans(catalog: Catalog) -> list[ProblemPlan]:
    catalog.load_file(Path(__file__).with_name("rogues.py"))
    problems = [Problem("square", {"n": n, "dtype": "float32"}) for n in (100, 200)]
    return list(plan(problems, catalog, CPU, ["rogue.honest"]))


def candidates(plan: ProblemPlan) -> list[Candidate]:
    (choice,) = plan.choices
    return [Candidate(choice.implementation, config) for config in choice.configs]


def recorder(store: Store) -> RunStore:
    return RunStore(store, CPU, PROTOCOL, {})


def tell(recorder: RunStore, plan: ProblemPlan, number: int, status: str = "ok") -> str:
    outcome = Outcome(status, "", (1.0,), 1.0)
    return recorder.trial(plan, candidates(plan)[number], outcome).uid


def uids(found: list[tuple[Candidate, Trial]]) -> list[str]:
    return [trial.uid for _, trial in found]


def test_news_are_other_runs_lasting_trials_each_told_once(store: Store, plans: list[ProblemPlan]) -> None:
    one, other = recorder(store), recorder(store)
    first, second = plans
    before = tell(other, first, 0)
    assert uids(one.known_trials(first)) == [before]
    news = [tell(other, first, 1), tell(other, first, 2)]
    tell(other, first, 0, "crash")
    tell(other, second, 0)
    assert uids(one.news(first)) == news
    assert one.news(first) == []


def test_what_two_runs_try_at_once_is_stored_once(store: Store, plans: list[ProblemPlan]) -> None:
    before = tell(recorder(store), plans[0], 1)
    one, other = recorder(store), recorder(store)
    mine = tell(one, plans[0], 1)
    assert mine != before, "what earlier runs have stored is tried again where it is tuned again"
    assert tell(other, plans[0], 1) == mine
    assert tell(one, plans[0], 1) not in {mine, before}, "a run may try its own candidate again"
    crashed = tell(one, plans[0], 2, "crash")
    assert tell(other, plans[0], 2) != crashed, "a crash may have been bad luck"
    assert tell(one, plans[1], 1) not in {mine, before}, "another problem"


def test_whether_there_is_news_depends_on_others_only(store: Store, plans: list[ProblemPlan]) -> None:
    one, other = recorder(store), recorder(store)
    tell(one, plans[0], 0)
    assert not one.has_news()
    tell(other, plans[1], 0)
    assert one.has_news()
    assert not one.has_news()


def test_who_does_not_ask_for_what_is_known_hears_only_of_what_came_later(
    store: Store, plans: list[ProblemPlan]
) -> None:
    tell(recorder(store), plans[0], 0)
    one, other = recorder(store), recorder(store)
    tell(one, plans[0], 2)
    later = tell(other, plans[0], 1)
    assert uids(one.news(plans[0])) == [later]


def test_seeds_are_winners_of_the_nearest_and_of_what_was_published_since(catalog: Catalog, store: Store) -> None:
    problems = [Problem("softmax", {"rows": 2**n, "cols": 64, "dtype": "float32"}) for n in range(10)]
    plans = plan(problems, catalog, CPU, ["torch.native"])
    writer = recorder(store)

    def publish(planned: ProblemPlan) -> None:
        writer.publish(writer.decision(planned, planned.defaults()[0], median_us=1.0), [])

    def rows() -> list[int]:
        return [dims["rows"] for dims, _ in writer.neighbours(plans[5])]

    assert rows() == []
    for planned in (plans[0], plans[4], plans[9]):
        publish(planned)
    assert rows() == [16, 512, 1]
    publish(plans[6])
    assert sorted(rows()[:2]) == [16, 64]


class ReadAtLaunch(CppImplementation):
    """A kernel whose text is read when a launch is made, so that the fingerprint does not see it."""

    op, name = "square", "late.square"

    def __init__(self, file: Path) -> None:
        self.file = file

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        kernel = CppKernel(self.file.read_text(), "square")
        return Launch(kernel, grid=(), args=("x", "y", problem.n))


def test_a_kernel_whose_text_has_changed_is_neither_known_nor_the_incumbent(
    store: Store, catalog: Catalog, tmp_path: Path
) -> None:
    file = tmp_path / "square.cpp"
    file.write_text("void square(const float* x, float* y, long long n) { y[0] = 1; }")
    catalog.register(ReadAtLaunch(file))
    (planned,) = plan([Problem("square", {"n": 100, "dtype": "float32"})], catalog, CPU, ["late.square"])
    writer = recorder(store)
    uid = tell(writer, planned, 0)
    (candidate,) = candidates(planned)
    decision = writer.decision(planned, candidate, median_us=1.0, trial_uid=uid)
    assert uids(recorder(store).known_trials(planned)) == [uid]
    assert writer.valid(planned, decision) == candidate

    file.write_text("void square(const float* x, float* y, long long n) { y[0] = 2; }")
    assert recorder(store).known_trials(planned) == []
    assert writer.valid(planned, decision) is None
    assert uids(recorder(store).known_trials(planned)) == []
    again = tell(writer, planned, 0)
    assert uids(recorder(store).known_trials(planned)) == [again]


def test_what_cannot_be_stored_is_told(tmp_path: Path, catalog: Catalog) -> None:
    catalog.load_file(Path(__file__).with_name("rogues.py"))
    (planned,) = plan([Problem("square", {"n": 100, "dtype": "float32"})], catalog, CPU, ["rogue.honest"])
    path = tmp_path / "tuning.db"
    with Store.open(path) as store:
        writer = RunStore(store, CPU, PROTOCOL, {}, patience_s=0.1)
        with closing(sqlite3.connect(path)) as other:  # as a newer version may make of it
            other.execute("ALTER TABLE trial RENAME COLUMN message TO told")
            other.execute("ALTER TABLE decision RENAME COLUMN verdict TO told")
        with pytest.raises(TuningDBError, match="1 measured trial could not be stored"):
            tell(writer, planned, 0)
        decision = writer.decision(planned, candidates(planned)[0], median_us=1.0)
        with pytest.raises(TuningDBError, match="a decision of square with its finals could not be stored"):
            writer.publish(decision, [])


def test_a_database_that_stays_away_is_waited_for_once() -> None:
    patience, asked = Patience(seconds=0.5), list[float]()

    def away() -> None:
        asked.append(time.monotonic())
        raise LostDatabaseError("away")

    for most_s in (5.0, 0.1):
        began = time.monotonic()
        with pytest.raises(LostDatabaseError):
            patience(away)
        assert time.monotonic() - began < most_s
    tries = len(asked)
    assert tries > 2
    assert patience(lambda: 1) == 1
    with pytest.raises(LostDatabaseError):
        patience(away)
    assert len(asked) > tries + 1, "it was there again"


def test_of_a_database_that_was_moved_what_is_in_no_copy_is_told(tmp_path: Path, plans: list[ProblemPlan]) -> None:
    path = tmp_path / "moved.db"
    with Store.open(path) as store:
        run = recorder(store)
        with ExitStack() as reading:
            reading.enter_context(store._opened.reading())  # by which the connection that is open is in use
            path.unlink()
            with pytest.raises(MovedDatabaseError, match="; 1 measured trial could not be stored"):
                tell(run, plans[0], 0)
            with pytest.raises(MovedDatabaseError):
                reading.close()
        with pytest.raises(MovedDatabaseError, match="what it held is saved in ") as told:
            tell(run, plans[0], 1)
        assert "could not be stored" not in told.value.message
