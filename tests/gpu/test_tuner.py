"""The tuner on a GPU: every way of sampling, the copy floor, a poisoned context, and a whole run that dispatch uses."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.device import Device
from registry.discovery import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.tuner.copying import copy_sampler
from registry.tuner.events import Event, Note, TrialDone
from registry.tuner.measure import measure
from registry.tuner.protocol import Protocol
from registry.tuner.run import Budget, tune
from registry.tuner.samplers import BacklogSampler, Enqueue, FlushSampler, GraphSampler, copies_of, sampler_for

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

POISON = Path(__file__).with_name("poison.py")


@pytest.fixture(scope="module")
def device() -> Device:
    return Device.best()


def squares(n: int, copies: int) -> tuple[list[Enqueue], list[torch.Tensor]]:
    inputs = [torch.full((n,), 3.0, device="cuda") for _ in range(copies)]
    outputs = [torch.zeros_like(x) for x in inputs]
    pairs = zip(inputs, outputs, strict=True)
    return [lambda x=x, y=y: torch.mul(x, x, out=y) for x, y in pairs], outputs  # type: ignore[misc]


@pytest.mark.parametrize(
    ("n", "capturable", "kind"),
    [(2**22, True, GraphSampler), (2**22, False, BacklogSampler), (1024, True, FlushSampler)],
)
def test_each_sampler_launches_on_every_copy(device: Device, n: int, capturable: bool, kind: type) -> None:
    protocol = Protocol.of(device)
    launches, outputs = squares(n, copies_of(8 * n, protocol))
    sampler = sampler_for(launches, capturable=capturable, working_set=8 * n, protocol=protocol, device=device)
    assert type(sampler) is kind
    found = measure(sampler, protocol)
    assert len(found.samples) >= protocol.min_samples
    assert min(found.samples) > 0
    for y in outputs:
        y.zero_()
    sampler.replay()
    torch.cuda.synchronize()
    assert all(bool((y == 9.0).all()) for y in outputs)
    sampler.close()


def test_what_cannot_be_captured_is_timed_behind_a_backlog(device: Device) -> None:
    x = torch.ones(2**22, device="cuda")

    def synchronises() -> object:
        return x.sum().item()

    sampler = sampler_for(
        [synchronises], capturable=True, working_set=x.nbytes, protocol=Protocol.of(device), device=device
    )
    assert type(sampler) is BacklogSampler
    assert sampler.sample() > 0


def test_a_copy_is_timed_whatever_its_size(device: Device) -> None:
    for size in (64, 2**20, 2**26):
        sampler = copy_sampler(size, device, Protocol.of(device))
        assert sampler.sample() > 0
        sampler.close()


def statuses(events: Iterable[Event]) -> dict[str, str]:
    return {event.implementation: event.status for event in events if isinstance(event, TrialDone)}


def test_a_poisoned_context_costs_one_trial(catalog: Catalog, device: Device, tmp_path: Path) -> None:
    catalog.load_file(POISON)
    events: list[Event] = []
    (result,) = tune(
        [catalog.op("square").problem_of({"n": 2**20, "dtype": "float32"})],
        catalog=catalog, device=device, database=str(tmp_path / "tuning.db"),
        implementations=["poison.illegal", "torch.native"], observer=events.append,
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
        problems, catalog=catalog, device=device, database=str(database), budget=Budget(trials=12),
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
