"""Threads, tasks, forked and spawned processes, and more shapes than fit."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import artifact
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.hit.table import Table
from registry.dispatch.torch_side import operators as torch_ops

from .. import fresh

THREADS = 4


def in_threads(work: Callable[[int], None], count: int = THREADS) -> None:
    """Run ``work`` in several threads at once; raises what the first of them raised."""
    faults: list[BaseException] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            start.wait()
            work(number)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if faults:
        raise faults[0]


def check(dispatcher: Dispatcher, x: torch.Tensor) -> None:
    torch.testing.assert_close(dispatcher.call("softmax", x), torch.softmax(x, -1))


def test_more_shapes_than_fit_leave_a_bounded_table(dispatcher: Dispatcher, told: Any) -> None:
    dispatcher.register(told("a.one", blocks=lambda problem: [int(problem.cols)]))
    bound = dispatcher.bound("softmax")
    bound.table._most_shapes = 20
    for cols in range(1, 61):
        check(dispatcher, torch.randn(2, cols))
        assert len(bound.table) <= 20
    now = bound.table.now
    assert len(now.shapes) == len(bound.table)
    for cols in range(1, 61):
        check(dispatcher, torch.randn(2, cols))


def test_a_table_under_concurrent_clears_stays_consistent(dispatcher: Dispatcher, told: Any) -> None:
    dispatcher.register(told("a.one"))
    bound = dispatcher.bound("softmax")
    bound.table._most_shapes = 8

    def work(number: int) -> None:
        for step in range(60):
            check(dispatcher, torch.randn(2, 1 + (7 * number + step) % 24))
            if number == 0 and step % 5 == 0:
                bound.clear()
            if number == 1 and step % 20 == 0:
                dispatcher.forget()

    in_threads(work)
    table: Table = bound.table
    assert len(table.now.shapes) == len(table) <= 8


def test_counters_of_threads_add_up(dispatcher: Dispatcher, told: Any) -> None:
    dispatcher.register(told("a.one"))
    x = torch.randn(4, 8)
    dispatcher.call("softmax", x)

    def work(number: int) -> None:
        for _ in range(200):
            dispatcher.call("softmax", x)

    in_threads(work)
    assert dispatcher.explain("softmax", x).calls == 1 + 200 * THREADS


def test_using_belongs_to_its_asyncio_task(dispatcher: Dispatcher, told: Any) -> None:
    one, other = told("a.one"), told("a.other", -5.0)
    dispatcher.register(one)
    dispatcher.register(other)
    x = torch.randn(4, 8)

    async def forced() -> list[str]:
        seen = []
        with dispatcher.using(softmax="a.other"):
            for _ in range(5):
                check(dispatcher, x)
                seen.append(dispatcher.explain("softmax", x).implementation)
                await asyncio.sleep(0)
        return seen

    async def plain() -> list[str]:
        seen = []
        for _ in range(5):
            check(dispatcher, x)
            seen.append(dispatcher.explain("softmax", x).implementation)
            await asyncio.sleep(0)
        return seen

    async def both() -> list[list[str]]:
        return [*await asyncio.gather(forced(), plain(), forced())]

    assert asyncio.run(both()) == [["a.other"] * 5, ["a.one"] * 5, ["a.other"] * 5]
    assert (len(one.runs), len(other.runs)) == (5, 10)
    assert dispatcher.forcing.active == 0


def exit_code_of_fork(target: Callable[[], object], release: threading.Event, thread: threading.Thread) -> int | None:
    """The exit code of a child that is forked beside a thread, which ends after it; negative if it hung."""
    process = multiprocessing.get_context("fork").Process(target=target)
    try:
        process.start()
        process.join(30)
    finally:
        release.set()
        thread.join()
        if process.is_alive():
            process.kill()
            process.join()
    return process.exitcode


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_calls_even_where_a_lock_was_held(dispatcher: Dispatcher, told: Any) -> None:
    dispatcher.register(told("a.one"))
    x = torch.randn(4, 8)
    check(dispatcher, x)
    bound = dispatcher.bound("softmax")
    locks: list[Any] = [
        dispatcher._lock,
        bound.table._lock,
        bound.plans._lock,
        bound.plans.failures._lock,
        dispatcher.forcing._lock,
        dispatcher.catalog._lock,
        torch_ops.SERVING.lock,
    ]
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.acquire()
        held.set()
        release.wait()
        for lock in reversed(locks):
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()

    def child() -> None:
        torch.set_num_threads(1)  # OpenMP's own threads are not there either
        check(dispatcher, x)
        check(dispatcher, torch.randn(5, 9))
        with dispatcher.using(softmax="a.one"):
            check(dispatcher, x)
        dispatcher.forget()
        check(dispatcher, x)
        dispatcher.register(told("a.two"))
        torch_ops.define(dispatcher.catalog.op("softmax"))

    assert exit_code_of_fork(child, release, thread) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_computes_a_property_that_a_thread_was_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    computing, release = threading.Event(), threading.Event()
    plain = artifact.canonical_json

    def slow(value: object) -> str:
        if threading.current_thread() is thread:
            computing.set()
            release.wait()
        return plain(value)

    monkeypatch.setattr(artifact, "canonical_json", slow)
    one, other = (artifact.Variant("triton", name, {}, "source") for name in ("one", "other"))
    thread = threading.Thread(target=lambda: one.key)
    thread.start()
    computing.wait()
    assert exit_code_of_fork(lambda: other.key, release, thread) == 0


@pytest.mark.thorough
def test_a_spawned_child_calls(tmp_path: Path) -> None:
    code = (
        "import multiprocessing, torch, registry\n"
        "def work(x): assert registry.call('softmax', x).allclose(torch.softmax(x, -1))\n"
        "if __name__ == '__main__':\n"
        "    x = torch.randn(4, 8)\n"
        "    work(x)\n"
        "    child = multiprocessing.get_context('spawn').Process(target=work, args=(x,))\n"
        "    child.start(); child.join(); print(child.exitcode)\n"
    )
    file = tmp_path / "spawns.py"
    file.write_text(code)
    done = fresh.run(file)
    assert done.stdout.strip() == "0", done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_leaves_the_blocks_of_the_parents_other_threads(dispatcher: Dispatcher, told: Any) -> None:
    dispatcher.register(told("a.one"))
    opened, release = threading.Event(), threading.Event()

    def hold() -> None:
        with dispatcher.using(softmax="a.one"):
            opened.set()
            release.wait()

    def child() -> None:
        assert dispatcher.forcing.active == 1, "the block that this thread was in"

    thread = threading.Thread(target=hold)
    thread.start()
    opened.wait()
    with dispatcher.using(softmax="a.one"):
        assert dispatcher.forcing.active == 2
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(30)
    release.set()
    thread.join()
    assert (process.exitcode, dispatcher.forcing.active) == (0, 0)
