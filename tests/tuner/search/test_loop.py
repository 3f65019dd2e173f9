"""What the search sends to the device, and what it does not."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from registry.artifact import Artifact, Signature, Target, Variant
from registry.artifact import Built as BuiltFor
from registry.contracts import SOFTMAX
from registry.device import Device
from registry.dispatch.plans.plan import Candidate
from registry.implementation import Implementation, Run
from registry.problem import Problem
from registry.space import Config, Space
from registry.tuner.events import Event, TrialDone
from registry.tuner.jobs import Outcome, TrialJob
from registry.tuner.limits import Budget, Limits
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.planning.problems import ImplementationPlan, ProblemPlan
from registry.tuner.search.loop import SearchLoop
from registry.tuner.search.state import SearchState
from registry.tuner.storing import RunStore
from registry.tuner.workers.crew import Crew
from registry.tuner.workers.tuned_device import TunedDevice
from tuning_db import Store

LIMIT = 1000
DEVICE = replace(Device.of("cpu"), shared_bytes=LIMIT)
PROBLEM = Problem("softmax", {"rows": 64, "cols": 256, "dtype": "float32"})
DEFAULT, STORED, OTHER = 0, 1, 2

FITS = {"shared_bytes": LIMIT}
SPILLS = {"registers": 255, "spill_bytes": 16}
TOO_MUCH = {"shared_bytes": LIMIT + 1}


class Three(Implementation):
    """Of the three configs 0 is the default; 1 is what the database holds as the winner."""

    op = "softmax"
    name = "acme.three"
    device_types = frozenset({"cpu"})

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(number=[DEFAULT, STORED, OTHER])

    def default(self, problem: Problem, device: Device) -> Config:
        return {"number": DEFAULT}

    def variants(self, problem: Problem, config: Config, device: Device, signature: Signature) -> tuple[Variant, ...]:
        return tuple(Variant("none", kernel, dict(config)) for kernel in ("first", "second"))

    def bind(self, problem: Problem, config: Config, device: Device, built: BuiltFor) -> Run:
        raise AssertionError("never run here")


class Compiled:
    """A compiler that is done: of every second kernel it tells the resources that the test gives, by config."""

    idle = True

    def __init__(self, resources: Mapping[int, Mapping[str, int]]) -> None:
        self._resources = resources

    def want(self, op: str, implementation: str, variant: Variant, target: Target) -> Artifact:
        told = self._resources.get(variant.spec["number"], {}) if variant.kernel == "second" else {}
        return Artifact(variant, resources=told)

    def keep_only(self, keys: Any) -> None:
        """Nothing is queued."""


class Telling(Crew):
    """Answers every trial with a time; remembers which configs it was sent."""

    def __init__(self, compiler: Any) -> None:
        super().__init__([DEVICE], (), Limits(), print)
        self.compiler = compiler
        self.worker: Any = SimpleNamespace(wants_more=True, idle=False)
        self.devices[0].worker = self.worker
        self.sent: set[int] = set()
        self._jobs_sent: collections.deque[TrialJob] = collections.deque()

    def submit(self, job: TrialJob, on: TunedDevice) -> None:
        self._jobs_sent.append(job)
        if job.entrant.role == "candidate":
            self.sent.add(job.entrant.config["number"])

    def wait(self) -> None:
        """Each trial is answered at once."""

    def take_answered(self) -> list[tuple[TrialJob, Outcome]]:
        return [(self._jobs_sent.popleft(), Outcome("ok", median_us=5.0))]


def searched(store: Store, resources: Mapping[int, Mapping[str, int]]) -> tuple[set[int], dict[int, TrialDone]]:
    """Which configs a search sent to the device, and what became of each."""
    three, told = Three(), {}
    plan = ProblemPlan(
        PROBLEM, SOFTMAX, DEVICE, (ImplementationPlan(three, three.space(PROBLEM, DEVICE), {"number": 0}),)
    )

    def begin(plan: ProblemPlan, over: Sequence[SearchState]) -> SearchState:
        return SearchState(plan, Budget(trials=3), (), 0, Candidate(three, {"number": STORED}))

    def observe(event: Event) -> None:
        if isinstance(event, TrialDone):
            told[event.config["number"]] = event

    crew, protocol = Telling(Compiled(resources)), TimingProtocol.of(DEVICE)
    SearchLoop(crew, DEVICE, protocol, RunStore(store, DEVICE, protocol, {}), observe).run([plan], begin)
    return crew.sent, told


def test_what_fits_is_measured(store: Store) -> None:
    sent, told = searched(store, dict.fromkeys(range(3), FITS))
    assert sent == {DEFAULT, STORED, OTHER}
    assert {event.status for event in told.values()} == {"ok"}


def test_what_spills_is_measured_only_if_it_must_be_tried(store: Store) -> None:
    sent, told = searched(store, dict.fromkeys(range(3), SPILLS))
    assert sent == {DEFAULT, STORED}
    assert (told[OTHER].status, told[DEFAULT].status, told[STORED].status) == ("out_of_resources", "ok", "ok")
    assert "16 bytes spill" in told[OTHER].message


@pytest.mark.parametrize(("number", "resources"), [(STORED, FITS), (STORED, SPILLS)])
def test_what_one_problem_must_try_although_it_spills_is_not_shared_with_another(
    store: Store, number: int, resources: Mapping[str, int]
) -> None:
    three, protocol = Three(), TimingProtocol.of(DEVICE)
    there = Problem("softmax", {"rows": 128, "cols": 256, "dtype": "float32"})
    choice = ImplementationPlan(three, three.space(PROBLEM, DEVICE), {"number": DEFAULT})
    crew = Telling(Compiled({number: resources}))
    crew.worker.idle, crew.compiler.idle = True, False
    loop = SearchLoop(crew, DEVICE, protocol, RunStore(store, DEVICE, protocol, {}), lambda event: None)
    one, other = (
        SearchState(ProblemPlan(problem, SOFTMAX, DEVICE, (choice,)), Budget(trials=3), (), place, stored)
        for place, (problem, stored) in enumerate(
            [(PROBLEM, Candidate(three, {"number": STORED})), (there, None)]
        )
    )  # fmt: skip
    loop._active = [one, other]
    loop._place = dict.fromkeys(loop._active, crew.devices[0])
    for waiting in list(one.waiting):
        loop._push(one, waiting)
    loop._ready.clear()
    while loop._share(crew.devices[0]):
        pass
    shared = [(ready.search, ready.candidate.config["number"]) for ready in loop._ready if ready.candidate]
    assert shared == ([(other, number)] if resources is FITS else [])
    assert other.wants(Candidate(three, {"number": number})) is (resources is SPILLS)


@pytest.mark.parametrize("number", [DEFAULT, STORED, OTHER])
@pytest.mark.parametrize("beside", [{}, SPILLS])
def test_what_exceeds_the_shared_memory_never_reaches_the_device(
    store: Store, number: int, beside: Mapping[str, int]
) -> None:
    sent, told = searched(store, {number: {**TOO_MUCH, **beside}})
    assert sent == {DEFAULT, STORED, OTHER} - {number}
    assert told[number].status == "out_of_resources"
    assert f"needs {LIMIT + 1} bytes of shared memory a block" in told[number].message
