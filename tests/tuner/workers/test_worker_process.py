"""A worker's process makes its context on the device when it is told to, or for its first job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.problem import Value
from registry.tuner.jobs import CLAIM, Entrant, VerificationJob, to_json
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.processes.process import Parent
from registry.tuner.workers.worker import Worker
from registry.tuner.workers.worker_process import serve

CPU = Device.of("cpu")
DIMS: dict[str, Value] = {"rows": 2, "cols": 8, "dtype": "float32"}
JOB = to_json(
    VerificationJob(7, "softmax", DIMS, Entrant("torch.native", {}), dict(TimingProtocol.of(CPU).details), seed=1)
)


class Scripted:
    """Sends a worker's process these messages; ``told`` is what it answers, among it where its worker is made."""

    def __init__(self, *messages: Mapping[str, Any]) -> None:
        self._messages = messages
        self.told: list[str] = []

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        yield from self._messages

    def send(self, message: Mapping[str, Any]) -> None:
        self.told.append(str(message.get("step") or next(key for key in message if key != "id")))

    def make(self, device: Device) -> Worker:
        self.told.append("made")
        return Worker(Catalog(), device)


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([{CLAIM: True}, JOB], ["ready", "made", CLAIM]),
        ([{CLAIM: True}, {CLAIM: True}, JOB], ["ready", "made", CLAIM, CLAIM]),
        ([JOB, JOB], ["ready", "start", "made"]),
    ],
)
def test_the_context_is_made_once_by_a_claim_or_by_the_first_job(
    messages: list[Mapping[str, Any]], told: list[str]
) -> None:
    parent = Scripted(*messages)
    serve(cast(Parent, parent), "cpu", "", parent.make)
    assert parent.told[: len(told)] == told
    assert set(parent.told[len(told) :]) == {"load", "verify", "outcome"}
