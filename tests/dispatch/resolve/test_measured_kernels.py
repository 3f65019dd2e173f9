"""A winner answers calls only with the kernels that were measured, also where no fingerprint covers their texts."""

from __future__ import annotations

import io
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import Config, Device, NotTunedError, Problem, Space
from registry.backends import CppImplementation, CppKernel
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.plans.plan import Candidate
from registry.implementation import Launch
from registry.tuner.jobs import Outcome
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.planning.problems import plan
from registry.tuner.storing import RunStore
from tuning_db import Store

CPU = Device.of("cpu")
TEXT = "void square(const float* x, float* y, long long n) { for (long long i = 0; i < n; ++i) y[i] = x[i] * x[i]; }"
CHANGED = TEXT.replace("x[i] * x[i]", "x[i] * (x[i] + 0)")
WHY = "the kernels of late.square have changed since they were measured"


class ReadAtLaunch(CppImplementation):
    """A kernel whose text is read when a launch is made."""

    op, name = "square", "late.square"
    preference_is = -1.0

    def __init__(self, file: Path) -> None:
        self.file = file

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(width=[1, 2])

    def preference(self, problem: Problem, device: Device) -> float:
        return self.preference_is

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        return Launch(CppKernel(self.file.read_text(), "square"), grid=(), args=("x", "y", problem.n))


class Preferred(ReadAtLaunch):
    preference_is = 9.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "square.cpp"
    file.write_text(TEXT)
    return file


def tuned(store: Store, implementation: ReadAtLaunch, *sizes: int, width: int = 1) -> None:
    """Store it as the winner of these sizes, with the trials that found it."""
    catalog = Catalog()
    catalog.register(implementation)
    problems = [Problem("square", {"n": n, "dtype": "float32"}) for n in sizes]
    planned = plan(problems, catalog, CPU, [implementation.name])
    run = RunStore(store, CPU, TimingProtocol.of(CPU), {}, plans=planned)
    for one in planned:
        candidate = Candidate(implementation, {"width": width})
        uid = run.trial(one, candidate, Outcome("ok", "", (1.0,), 1.0)).uid
        assert run.publish(run.decision(one, candidate, uid, median_us=1.0), [])


def dispatching(store: Store, implementation: ReadAtLaunch, **settings: Any) -> Dispatcher:
    """As a new process would."""
    catalog = Catalog()
    catalog.register(implementation)
    dispatcher = Dispatcher(catalog)
    dispatcher.configure(database=store.url, **settings)
    return dispatcher


def answer(dispatcher: Dispatcher, n: int) -> tuple[str, str, tuple[str, ...]]:
    """Step, implementation and misses of a call, whose result is checked."""
    x = torch.randn(n)
    torch.testing.assert_close(dispatcher.call("square", x), x * x)
    told = dispatcher.explain("square", x)
    return told.step, told.implementation, told.misses


def test_a_winner_with_its_measured_kernels_answers(store: Store, file: Path) -> None:
    tuned(store, ReadAtLaunch(file), 100)
    dispatcher = dispatching(store, ReadAtLaunch(file))
    assert answer(dispatcher, 100) == ("exact", "late.square", ())
    assert answer(dispatcher, 120) == ("nearest", "late.square", ())


def test_a_winner_with_other_kernels_does_not(store: Store, file: Path) -> None:
    tuned(store, ReadAtLaunch(file), 100)
    file.write_text(CHANGED)
    dispatcher = dispatching(store, ReadAtLaunch(file))
    for n, where in ((100, "winner of exactly this problem"), (120, "winner of n=100")):
        step, implementation, misses = answer(dispatcher, n)
        assert (step, implementation) == ("default", "torch.native")
        assert f"{where}: {WHY}" in misses
        posed = dispatcher.explain_problem(Problem("square", {"n": n, "dtype": "float32"}), CPU)
        assert (posed.step, posed.implementation) == ("default", "torch.native")
        assert f"{where}: {WHY}" in posed.misses
    file.write_text(TEXT)
    assert answer(dispatching(store, ReadAtLaunch(file)), 100) == ("exact", "late.square", ())


def test_strict_mode_refuses_as_for_a_winner_whose_source_has_changed(store: Store, file: Path) -> None:
    tuned(store, ReadAtLaunch(file), 100)
    file.write_text(CHANGED)
    with pytest.raises(NotTunedError, match=WHY):
        dispatching(store, ReadAtLaunch(file), mode="strict").call("square", torch.randn(100))


def test_a_comment_changes_nothing(store: Store, file: Path) -> None:
    tuned(store, ReadAtLaunch(file), 100)
    file.write_text(f"// told better now\n\n{TEXT}  // n elements")
    assert answer(dispatching(store, ReadAtLaunch(file)), 100) == ("exact", "late.square", ())


def test_kernels_that_a_default_has_loaded_are_compared_too(store: Store, file: Path) -> None:
    """The default runs the changed kernel at one size: at another size that is no winner of the kernel before."""
    tuned(store, Preferred(file), 4096)
    file.write_text(CHANGED)
    dispatcher = dispatching(store, Preferred(file))
    for n in (3, 4096, 5000, 5001):
        step, implementation, misses = answer(dispatcher, n)
        assert (step, implementation) == ("default", "late.square")
        assert any(WHY in each for each in misses)


def test_winners_before_and_after_a_change_are_told_apart(store: Store, file: Path) -> None:
    """Of a call's two sizes one was tuned before the kernel changed, the other one after."""
    tuned(store, ReadAtLaunch(file), 64)
    file.write_text(CHANGED)
    tuned(store, ReadAtLaunch(file), 1 << 20, width=2)
    dispatcher = dispatching(store, ReadAtLaunch(file))
    for _ in range(2):
        assert answer(dispatcher, 1 << 20) == ("exact", "late.square", ())
        step, implementation, misses = answer(dispatcher, 64)
        assert (step, implementation) == ("nearest", "late.square")
        assert misses == (f"winner of exactly this problem: {WHY}",)


def test_a_decision_that_does_not_tell_its_kernels_is_believed(store: Store, file: Path) -> None:
    """As one that an earlier version has stored."""
    tuned(store, ReadAtLaunch(file), 100)
    with closing(sqlite3.connect(file.with_name("tuning.db"))) as database:
        database.execute("UPDATE decision SET artifact_hash = ''")
        database.commit()
    file.write_text(CHANGED)
    assert answer(dispatching(store, ReadAtLaunch(file)), 100) == ("exact", "late.square", ())


def test_an_imported_winner_tells_its_kernels(store: Store, file: Path, tmp_path: Path) -> None:
    """Exported without the trials."""
    tuned(store, ReadAtLaunch(file), 100)
    lines = io.StringIO()
    store.export(lines, winners_only=True)
    with Store.open(tmp_path / "imported.db") as imported:
        imported.load(io.StringIO(lines.getvalue()))
        assert answer(dispatching(imported, ReadAtLaunch(file)), 100) == ("exact", "late.square", ())
        file.write_text(CHANGED)
        assert answer(dispatching(imported, ReadAtLaunch(file)), 100)[:2] == ("default", "torch.native")


def test_a_launch_that_fails_is_told_as_such(store: Store, file: Path) -> None:
    tuned(store, ReadAtLaunch(file), 100)
    file.unlink()
    with pytest.warns(match="put aside"):
        step, implementation, misses = answer(dispatching(store, ReadAtLaunch(file)), 100)
    assert (step, implementation) == ("default", "torch.native")
    assert any("FileNotFoundError" in each for each in misses)
