"""The tuner on a GPU: a poisoned context, and a whole run that dispatch uses."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.tuner.events import Event, Note, RunEnded, TrialDone
from registry.tuner.limits import Budget
from registry.tuner.options import TuneOptions
from registry.tuner.run import tune

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

POISON = Path(__file__).with_name("poison.py")


@pytest.fixture(scope="module")
def device() -> Device:
    return Device.best()


def statuses(events: Iterable[Event]) -> dict[str, str]:
    return {event.implementation: event.status for event in events if isinstance(event, TrialDone)}


def test_a_poisoned_context_costs_one_trial(catalog: Catalog, device: Device, tmp_path: Path) -> None:
    catalog.load_file(POISON)
    events: list[Event] = []
    (result,) = tune(
        [catalog.op("square").problem_of({"n": 2**20, "dtype": "float32"})],
        catalog=catalog, device=device, database=str(tmp_path / "tuning.db"),
        options=TuneOptions(implementations=["poison.illegal", "torch.native"]), observer=events.append,
    )  # fmt: skip
    assert statuses(events) == {"poison.illegal": "crash", "torch.native": "ok"}
    assert any(isinstance(event, Note) for event in events) or result.implementation == "torch.native"
    assert result.implementation == "torch.native"


def test_dispatch_runs_what_a_run_decided(catalog: Catalog, device: Device, tmp_path: Path) -> None:
    database = tmp_path / "tuning.db"
    problems: list[Any] = [
        catalog.op("softmax").problem_of({"rows": 333, "cols": 1000, "dtype": "bfloat16"}),
        catalog.op("square").problem_of({"n": 100_001, "dtype": "float16"}),
    ]
    events: list[Event] = []
    results = tune(
        problems, catalog=catalog, device=device, database=str(database), options=TuneOptions(Budget(trials=12)),
        observer=events.append,
    )  # fmt: skip
    assert {result.verdict for result in results} == {"new"}
    dispatcher = Dispatcher(catalog, str(database))
    for result in results:
        op = catalog.op(result.problem.op)
        values = op.inputs(result.problem, "normal", torch.Generator("cuda"))
        told = dispatcher.explain(op.name, *values)
        assert (told.step, told.implementation, dict(told.config)) == (
            "exact", result.implementation, dict(result.config),
        )  # fmt: skip
        torch.testing.assert_close(dispatcher.call(op.name, *values), op.reference(*values))


def test_two_workers_on_one_gpu_share_the_problems_and_take_turns(
    catalog: Catalog, device: Device, tmp_path: Path
) -> None:
    """As on two GPUs, but for the lock, which both have."""
    problems = [
        catalog.op("softmax").problem_of({"rows": rows, "cols": 1000, "dtype": "bfloat16"}) for rows in (64, 333, 1024)
    ]
    events: list[Event] = []
    results = tune(
        problems, catalog=catalog, device=[device, device], database=str(tmp_path / "tuning.db"),
        options=TuneOptions(Budget(trials=6), implementations=["torch.native", "triton.row"]), observer=events.append,
    )  # fmt: skip
    assert {result.problem for result in results} == set(problems)
    assert {result.verdict for result in results} == {"new"}
    ended = events[-1]
    assert isinstance(ended, RunEnded)
    assert len(ended.devices) == 2
    assert all(one.trials for one in ended.devices)
