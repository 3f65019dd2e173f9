"""Missed calls: which are counted, with the hits that follow them, and that no process loses or doubles a count."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import DispatchWarning
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.hit.counter import Counter
from registry.dispatch.recording import misses, recording_file
from registry.dispatch.recording.misses import Misses, misses_file
from registry.problem import Problem
from registry.tuner.shapes.shapes import read_shapes

from ... import fresh
from ..conftest import Told


def counts_of(path: Path) -> dict[str, int]:
    return {str(problem): count for problem, count in read_shapes(path, Catalog()).counts.items()}


def softmax(rows: int, cols: int = 16) -> Problem:
    return Problem("softmax", {"rows": rows, "cols": cols, "dtype": "float32"})


def counter(value: int) -> Counter:
    made = Counter()
    for _ in range(value):
        made.hit()
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "misses.yaml"


@pytest.fixture
def noted(path: Path) -> Misses:
    return Misses({"KERNEL_REGISTRY_MISSES": str(path)})


def test_without_the_variable_nothing_is_noted(tmp_path: Path) -> None:
    for environ in ({}, {"KERNEL_REGISTRY_MISSES": "0"}, {"KERNEL_REGISTRY_MISSES": ""}):
        assert not Misses(environ).active
    assert misses_file({}) == misses_file({"KERNEL_REGISTRY_MISSES": "1"})
    assert misses_file({}).name == "misses.yaml"
    assert misses_file({"KERNEL_REGISTRY_MISSES": str(tmp_path / "own.yaml")}) == tmp_path / "own.yaml"


def test_hits_after_a_miss_count_and_each_call_is_written_once(noted: Misses, path: Path) -> None:
    calls = counter(1)
    noted.note(softmax(4), calls)
    for _ in range(9):
        calls.hit()
    noted.save()
    assert counts_of(path) == {str(softmax(4)): 10}
    noted.note(softmax(4), calls)  # the same plan again
    noted.note(softmax(4), counter(5))  # another layout of the problem
    noted.save()
    noted.save()
    assert counts_of(path) == {str(softmax(4)): 15}


def test_counters_and_problems_are_bounded_without_losing_calls(
    noted: Misses, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording_file, "MOST_PROBLEMS", 2)
    for _ in range(30):
        noted.note(softmax(1), counter(2))
    for rows in (2, 3, 4):
        noted.note(softmax(rows), counter(1))
    noted.save()
    assert counts_of(path) == {str(softmax(1)): 60, str(softmax(2)): 1}
    assert "# left out: 2 calls" in path.read_text()


def test_a_miss_long_after_the_last_time_writes(noted: Misses, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted.note(softmax(1), counter(1))
    assert not path.exists()
    monkeypatch.setattr(misses, "_INTERVAL_S", 0.0)
    noted.note(softmax(2), counter(1))
    assert set(counts_of(path)) == {str(softmax(1)), str(softmax(2))}


def test_calls_of_a_pause_are_left_out_and_those_after_it_count(noted: Misses, path: Path) -> None:
    before, within = counter(3), counter(1)
    noted.note(softmax(1), before)
    with noted.paused():
        before.hit()
        noted.note(softmax(2), within)
        with noted.paused():
            within.hit()
        within.hit()
    noted.save()
    assert counts_of(path) == {str(softmax(1)): 3}
    for calls in (before, within):
        calls.hit()
    noted.save()
    assert counts_of(path) == {str(softmax(1)): 4, str(softmax(2)): 1}


def test_what_is_written_in_a_pause_is_what_was_counted_before(
    noted: Misses, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counter(3)
    noted.note(softmax(1), calls)
    monkeypatch.setattr(misses, "_INTERVAL_S", 0.0)
    with noted.paused():
        calls.hit()
        noted.note(softmax(2), counter(1))
        noted.save()
        calls.hit()
    assert counts_of(path) == {str(softmax(1)): 3}
    calls.hit()
    noted.save()
    assert counts_of(path) == {str(softmax(1)): 4}


def test_a_file_that_cannot_be_written_is_warned_of_once_and_kept(noted: Misses, path: Path) -> None:
    path.write_text("my notes\n")
    with pytest.warns(DispatchWarning, match="missed calls are not counted"):
        noted.note(softmax(1), counter(1))
    noted.note(softmax(2), counter(1))
    noted.save()
    assert path.read_text() == "my notes\n"
    assert not noted.active


def test_calls_without_an_exact_winner_are_noted_and_others_are_not(
    path: Path, monkeypatch: pytest.MonkeyPatch, publish: Callable[..., Any], told: type[Told]
) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_MISSES", str(path))
    catalog = Catalog(entry_points=())
    catalog.register(told("own.rows"))
    dispatcher = Dispatcher(catalog)
    publish({"rows": 4, "cols": 16, "dtype": "float32"}, "own.rows", {"block": 2})
    for rows in (4, 4, 4, 5, 5, 6, 6, 6):
        dispatcher.call("softmax", torch.randn(rows, 16))
    dispatcher.call("softmax", torch.randn(0, 16))  # nothing to launch
    with dispatcher.using(softmax="own.rows"):
        dispatcher.call("softmax", torch.randn(7, 16))
    dispatcher.configure(mode="reference")
    dispatcher.call("softmax", torch.randn(8, 16))
    dispatcher.recorder.misses.save()
    assert counts_of(path) == {str(softmax(5)): 2, str(softmax(6)): 3}


def test_a_recorder_that_is_paused_neither_records_nor_counts(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_MISSES", str(path))
    dispatcher, recording = Dispatcher(Catalog(entry_points=())), tmp_path / "recording.yaml"
    with dispatcher.recorder.record(recording):
        for rows in (4, 5):
            with dispatcher.recorder.paused():
                dispatcher.call("softmax", torch.randn(rows, 16))
        for _ in range(2):
            dispatcher.call("softmax", torch.randn(5, 16))
    dispatcher.call("softmax", torch.randn(5, 16))
    dispatcher.recorder.misses.save()
    assert counts_of(recording) == {str(softmax(5)): 2}
    assert counts_of(path) == {str(softmax(5)): 3}


PROGRAM = """
import multiprocessing, os, sys
import torch
from registry import call

def work(calls):
    for _ in range(calls):
        call("softmax", torch.ones(3, 8))

if __name__ == "__main__":
    torch.set_num_threads(1)  # threads of OpenMP do not outlive a fork
    work(2)
    child = multiprocessing.get_context("fork").Process(target=work, args=(3,))
    child.start()
    child.join()
    if os.fork() == 0:
        work(4)
        sys.exit(0)
    os.wait()
    work(1)
"""


@pytest.mark.thorough
@pytest.mark.timeout(120)
def test_a_program_and_its_children_count_each_call_once(tmp_path: Path, path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    done = fresh.run(
        script, env={**os.environ, "KERNEL_REGISTRY_MISSES": str(path), "KERNEL_REGISTRY_SHIPPED": "0"}, limit_s=100
    )
    assert done.returncode == 0, done.stderr
    assert counts_of(path) == {str(softmax(3, 8)): 10}
