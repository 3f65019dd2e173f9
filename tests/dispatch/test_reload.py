"""New winners in a running process: all at one moment, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import Device, Op, StoreError
from registry.dispatch.dispatcher import Dispatcher
from tuning_db import CandidateKey, Decision, Environment, ProblemKey, Protocol, Store

DIMS = {"rows": 8, "cols": 16, "dtype": "float32"}


def publish_next(store: Store, op: Op, implementation: str, dims: Mapping[str, Any], block: int) -> None:
    """A winner that replaces the one there is."""
    device = Device.of("cpu")
    environment = Environment(device.hardware(), device.software())
    problem = ProblemKey(op.name, op.version, dims, tuple(name for name in dims if name in op.static))
    before = store.winner(problem, device.hardware(), device.software())
    decision = Decision(
        problem=problem,
        environment=environment,
        protocol=Protocol("cold"),
        candidate=CandidateKey(implementation, "1", {"block": block}),
        median_us=12.5,
        verdict="new",
        previous=before.uid if before else None,
    )
    assert store.publish(store.start_run(environment), decision)


@pytest.fixture
def tuned(dispatcher: Dispatcher, told: Any, publish: Any) -> Any:
    implementation = told("a.tuned")
    dispatcher.register(implementation)
    publish(DIMS, "a.tuned", {"block": 2})
    return implementation


def test_reload_takes_up_new_winners_and_counts_the_problems(dispatcher: Dispatcher, tuned: Any, store: Store) -> None:
    softmax = dispatcher.catalog.op("softmax")
    x = torch.randn(8, 16)
    for _ in range(3):
        dispatcher.call("softmax", x)
    assert dispatcher.reload() == 0
    publish_next(store, softmax, "a.tuned", DIMS, 4)
    publish_next(store, softmax, "a.tuned", {**DIMS, "rows": 100}, 1)
    dispatcher.call("softmax", x)
    assert dispatcher.explain("softmax", x).config == {"block": 2}
    assert dispatcher.reload() == 2
    dispatcher.call("softmax", x)
    assert (dispatcher.explain("softmax", x).config, tuned.runs[-1]) == ({"block": 4}, {"block": 4})
    assert dispatcher.explain("softmax", torch.randn(100, 16)).step == "exact"
    assert dispatcher.reload() == 0


def test_what_new_sizes_keep_is_dropped_with_the_winners(
    dispatcher: Dispatcher, told: Any, publish: Any, store: Store
) -> None:
    tuned = told("a.tuned", any_size=True)
    dispatcher.register(tuned)
    publish(DIMS, "a.tuned", {"block": 2})

    def config(rows: int) -> dict[str, int]:
        dispatcher.call("softmax", x := torch.randn(rows, 16))
        told = dispatcher.explain("softmax", x)
        assert (told.step, told.config, told.problem.rows) == ("nearest", tuned.runs[-1], rows)  # type: ignore[union-attr]
        return dict(told.config)

    assert [config(rows) for rows in (9, 10, 11)] == [{"block": 2}] * 3
    families = dispatcher.bound("softmax").miss.families
    assert families.known[0].plans
    publish_next(store, dispatcher.catalog.op("softmax"), "a.tuned", DIMS, 4)
    assert dispatcher.reload() == 1
    assert families.known == ()
    assert [config(rows) for rows in (12, 13, 9)] == [{"block": 4}] * 3


def test_a_reload_without_change_keeps_the_plans(dispatcher: Dispatcher, tuned: Any) -> None:
    x = torch.randn(8, 16)
    dispatcher.call("softmax", x)
    misses = dispatcher.bound("softmax").misses
    assert dispatcher.reload() == 0
    dispatcher.call("softmax", x)
    assert (dispatcher.bound("softmax").misses, tuned.bound) == (misses, 1)


def test_reload_before_any_call_reads_nothing(dispatcher: Dispatcher, tuned: Any) -> None:
    assert dispatcher.reload() == 0


def test_a_database_that_cannot_be_read_leaves_the_old_winners(
    dispatcher: Dispatcher, tuned: Any, tmp_path: Path
) -> None:
    x = torch.randn(8, 16)
    dispatcher.call("softmax", x)
    database = tmp_path / "tuning.db"
    for beside in tmp_path.glob("tuning.db-*"):
        beside.unlink()
    database.write_bytes(b"not a database" * 100)
    with pytest.raises(StoreError, match="winners were not reloaded"):
        dispatcher.reload()
    dispatcher.call("softmax", x)
    assert dispatcher.explain("softmax", x).config == {"block": 2}
    dispatcher.bound("softmax").clear()
    dispatcher.call("softmax", x)
    assert dispatcher.explain("softmax", x).config == {"block": 2}, "the winners themselves are still in memory"


def test_no_thread_sees_an_old_winner_after_a_new_one(dispatcher: Dispatcher, told: Any, store: Store) -> None:
    implementations = {op: told(f"a.{op}", op=op, result=lambda t, *_: t) for op in ("square", "gelu")}
    for implementation in implementations.values():
        dispatcher.register(implementation)

    def store_winners(block: int) -> None:
        for op in implementations:
            publish_next(store, dispatcher.catalog.op(op), f"a.{op}", dims[op], block)

    dims: dict[str, dict[str, Any]] = {op: {"n": 16, "dtype": "float32"} for op in implementations}
    dims["gelu"]["approximate"] = "tanh"
    store_winners(1)
    x, stop = torch.randn(16), threading.Event()
    faults: list[Any] = []

    def work() -> None:
        seen: list[int] = []
        try:
            while not stop.is_set():
                for op, implementation in implementations.items():
                    dispatcher.call(op, x)
                    seen.append(implementation.mine.block)
                if seen != sorted(seen):
                    faults.append(seen[-4:])
                    return
                del seen[:-1]
        except BaseException as fault:
            faults.append(fault)

    for implementation in implementations.values():
        _remember_per_thread(implementation)
    for op in implementations:
        dispatcher.call(op, x)
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    changed = []
    try:
        for block in (2, 4):
            store_winners(block)
            changed.append(dispatcher.reload())
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not faults
    assert changed == [2, 2]


def _remember_per_thread(implementation: Any) -> None:
    """Keep the config of each thread's latest run in ``mine.block``."""
    implementation.mine = threading.local()

    class Runs(list[Any]):
        def append(self, config: Any) -> None:
            implementation.mine.block = config["block"]

    implementation.runs = Runs()


def test_a_winner_behind_a_stale_one_is_taken_up(dispatcher: Dispatcher, told: Any, publish: Any) -> None:
    tuned, x = told("a.tuned"), torch.randn(8, 16)
    dispatcher.register(tuned)
    publish(DIMS, "a.tuned", {"block": 2}, fingerprint="of another source")
    dispatcher.call("softmax", x)
    assert dispatcher.explain("softmax", x).step == "default"
    publish(DIMS, "a.tuned", {"block": 4}, software={"torch": "of another machine"})
    assert dispatcher.reload() == 1
    dispatcher.call("softmax", x)
    assert (dispatcher.explain("softmax", x).step, tuned.runs[-1]) == ("exact", {"block": 4})
