"""Scratch of gigabytes: all timed launches share one, and a candidate whose scratch does not fit is never launched."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from registry.artifact import Built
from registry.contracts import SQUARE
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate, Draft
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem, TensorSpec
from registry.space import Config, Space
from registry.tuner.jobs import PROBED, Entrant, TrialJob
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.planning.problems import ImplementationPlan, ProblemPlan
from registry.tuner.search.waiting import waiting_for
from registry.tuner.verify.session import Session
from registry.tuner.verify.timed import TimedPlan
from registry.tuner.workers.worker import Worker

CPU = Device.of("cpu")
PROBLEM = SQUARE.problem_of({"n": 4096, "dtype": "float32"})


class Roomy(Implementation):
    """Squares by way of ``mib`` MiB of scratch."""

    op, name = "square", "acme.roomy"
    device_types = frozenset({"cpu"})

    def __init__(self) -> None:
        self.given: list[int] = []

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(mib=[1, 2**14])

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        return {"work": TensorSpec((config["mib"] << 18,), torch.float32, (1,), device.torch, 16)}

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            self.given.append(scratch[0].data_ptr())
            scratch[0][: arguments[0].numel()].copy_(arguments[0])
            torch.square(scratch[0][: arguments[0].numel()], out=outputs[0])

        return run


def test_all_timed_launches_share_one_scratch() -> None:
    roomy = Roomy()
    session = Session(SQUARE, PROBLEM, CPU, replace(TimingProtocol.of(CPU), max_copies=5), 7)
    draft = Draft.of(SQUARE, Candidate(roomy, {"mib": 1}), PROBLEM, session.arguments, CPU)
    timed = TimedPlan(draft.compiled({}), session)
    assert len(timed.launches) == 5
    timed.launch_each()
    assert len(roomy.given) == 5
    assert len(set(roomy.given)) == 1
    assert len({outputs[0].data_ptr() for outputs in timed.outputs}) == 5, "outputs are each launch's own"
    assert all(torch.equal(outputs[0], timed.outputs[0][0]) for outputs in timed.outputs)


def test_a_trial_holds_one_scratch_at_a_time(monkeypatch: pytest.MonkeyPatch, catalog: Catalog) -> None:
    roomy, given = Roomy(), list[weakref.ref[torch.Tensor]]()
    most = 0

    def seen(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
        nonlocal most
        given.append(weakref.ref(scratch[0]))
        alive = [tensor for each in given if (tensor := each()) is not None]
        most = max(most, len({tensor.untyped_storage().data_ptr() for tensor in alive}))
        torch.square(arguments[0], out=outputs[0])

    monkeypatch.setattr(Roomy, "bind", lambda *_: seen)
    # two threads at once need one each, and are left out where memory is short
    monkeypatch.setattr("registry.tuner.verify.probes.calls_of_two_threads", lambda *_: 0)
    catalog.register(roomy)
    worker = Worker(catalog, CPU)
    dims, protocol = dict(PROBLEM.dims), replace(TimingProtocol.of(CPU), max_copies=3)
    job = TrialJob(0, "square", dims, Entrant(roomy.name, {"mib": 1}), protocol.details, 7)
    outcome = worker.trial(job, lambda *_: None)
    assert (outcome.status, outcome.message) == ("ok", "")
    assert outcome.details[PROBED], "it has met the probes, after it was timed"
    assert most == 1


@pytest.mark.parametrize(("memory", "fits"), [(2**30, False), (2**34, False), (2**36, True)])
def test_scratch_counts_in_the_memory_that_a_measurement_needs(memory: int, fits: bool) -> None:
    roomy, device = Roomy(), replace(CPU, memory_bytes=memory)
    choice = ImplementationPlan(roomy, roomy.space(PROBLEM, device), {"mib": 1})
    plan = ProblemPlan(PROBLEM, SQUARE, device, (choice,))
    small, large = (waiting_for(plan, Candidate(roomy, {"mib": mib})) for mib in (1, 2**14))
    assert (small.fault, small.misfit, large.fault) == ("", "", "")
    assert bool(large.misfit) is not fits
    if not fits:
        assert "its scratch takes 16.0 GiB" in large.misfit
