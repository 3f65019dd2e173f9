"""What the search sends to the device, and what it does not."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from registry.artifact import Artifact, Signature, Target, Variant
from registry.artifact import Built as BuiltFor
from registry.contracts import SOFTMAX
from registry.device import Device
from registry.dispatch.plans.plan import Candidate
from registry.implementation import Implementation, Run
from registry.problem import Problem
from registry.space import Config, Space
from registry.tuner.events import Event, Note, TrialDone
from registry.tuner.jobs import UNTESTED, Outcome, TrialJob
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

    def __init__(self, compiler: Any, *devices: Device) -> None:
        super().__init__(devices or [DEVICE], (), Limits(), print)
        self.compiler = compiler
        for device in self.devices:
            device.worker = cast("Any", SimpleNamespace(wants_more=True, idle=False))
        self.worker: Any = self.devices[0].worker
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


class Untested(Telling):
    """Every trial leaves out one check."""

    def take_answered(self) -> list[tuple[TrialJob, Outcome]]:
        return [(job, replace(told, details={UNTESTED: "no late inputs"})) for job, told in super().take_answered()]


def test_what_verification_could_not_test_is_told_once(store: Store) -> None:
    three, protocol, events = Three(), TimingProtocol.of(DEVICE), list[Event]()
    choice = ImplementationPlan(three, three.space(PROBLEM, DEVICE), {"number": DEFAULT})
    plan = ProblemPlan(PROBLEM, SOFTMAX, DEVICE, (choice,))
    loop = SearchLoop(Untested(Compiled({})), DEVICE, protocol, RunStore(store, DEVICE, protocol, {}), events.append)
    loop.run([plan], lambda plan, over: SearchState(plan, Budget(trials=3), (), 0))
    assert sum(isinstance(event, TrialDone) for event in events) == 3
    assert [event for event in events if isinstance(event, Note)] == [Note("no late inputs")]


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
@pytest.mark.few(3)
def test_what_exceeds_the_shared_memory_never_reaches_the_device(
    store: Store, number: int, beside: Mapping[str, int]
) -> None:
    sent, told = searched(store, {number: {**TOO_MUCH, **beside}})
    assert sent == {DEFAULT, STORED, OTHER} - {number}
    assert told[number].status == "out_of_resources"
    assert f"needs {LIMIT + 1} bytes of shared memory a block" in told[number].message


class Slow(Telling):
    """The first device is at its first job, until the second has had jobs of two problems."""

    def __init__(self) -> None:
        super().__init__(Compiled({}), DEVICE, replace(DEVICE, index=1))
        self.tried: dict[int, list[int]] = {0: [], 1: []}
        self.returned: list[TrialJob] = []
        self.held: collections.deque[TrialJob] = collections.deque()

    def submit(self, job: TrialJob, on: TunedDevice) -> None:
        first, second = self.devices[0], self.devices[-1]
        self.tried[on.device.index].append(int(job.dims["rows"]))
        if on is second:
            super().submit(job, on)
        else:
            self.held.append(job)
            self.worker.wants_more = False
        if len(set(self.tried[1])) == 2 and first is not second:
            self.ends()

    def ends(self) -> None:
        self.worker.wants_more = True
        self._jobs_sent.extend(self.held)
        self.held.clear()

    def take_answered(self) -> list[tuple[TrialJob, Outcome]]:
        return super().take_answered() if self._jobs_sent else []

    def take_returned(self) -> list[TrialJob]:
        returned, self.returned = self.returned, []
        return returned


class Failing(Slow):
    """The first device fails when the second has had jobs of two problems."""

    def ends(self) -> None:
        self.devices.pop(0)
        self.returned = list(self.held)


ROWS = (64, 128, 192)


@pytest.mark.parametrize(
    ("kind", "first"),
    # the first and the third problem begin on the first device, which comes to a job of one only: the copy floor
    [(Slow, [64]), (Failing, [64])],
)
@pytest.mark.few(1)
def test_a_device_that_has_nothing_left_takes_over_a_search_and_one_that_fails_leaves_all(
    store: Store, kind: type[Slow], first: list[int]
) -> None:
    three, protocol, crew = Three(), TimingProtocol.of(DEVICE), kind()
    choice = ImplementationPlan(three, three.space(PROBLEM, DEVICE), {"number": DEFAULT})
    problems = [Problem("softmax", {**PROBLEM.dims, "rows": rows}) for rows in ROWS]
    plans = [ProblemPlan(problem, SOFTMAX, DEVICE, (choice,)) for problem in problems]
    events: list[Event] = []

    def begin(plan: ProblemPlan, over: Sequence[SearchState]) -> SearchState:
        return SearchState(plan, Budget(trials=3), (), len(plan.problem.dims))

    loop = SearchLoop(crew, DEVICE, protocol, RunStore(store, DEVICE, protocol, {}), events.append)
    over = loop.run(plans, begin)
    assert {search.plan.problem for search in over} == set(problems)
    tried = [event for event in events if isinstance(event, TrialDone)]
    assert {(event.problem.dims["rows"], event.config["number"]) for event in tried} == {
        (rows, number) for rows in ROWS for number in range(3)
    }
    assert len(tried) == 3 * len(ROWS)
    assert list(dict.fromkeys(crew.tried[0])) == first
    assert crew.tried[1][0] == 128, "each device begins with a problem of its own"
    assert 192 in crew.tried[1], "begun by the first, taken over by the second"
    assert {event.device for event in tried} <= {"cpu", "cpu:1"}
    if kind is Failing:
        assert {event.device for event in tried} == {"cpu:1"}
        assert crew.tried[1].count(64) == 1 + 3, "the copy floor, again, and all candidates"


def test_problems_that_share_probes_begin_on_one_device(store: Store) -> None:
    three, protocol = Three(), TimingProtocol.of(DEVICE)
    choice = ImplementationPlan(three, three.space(PROBLEM, DEVICE), {"number": DEFAULT})
    problems = [
        Problem("softmax", {"rows": rows, "cols": cols, "dtype": "float32"})
        for cols, rows in ((256, 64), (256, 128), (512, 64), (256, 192), (512, 128), (1024, 64))
    ]
    queue = collections.deque(ProblemPlan(problem, SOFTMAX, DEVICE, (choice,)) for problem in problems)
    crew = Telling(Compiled({}), DEVICE, replace(DEVICE, index=1))
    loop = SearchLoop(crew, DEVICE, protocol, RunStore(store, DEVICE, protocol, {}), print)
    one, other = crew.devices
    begun = [loop._next(queue, device).problem.dims for device in (one, other, one, one, one, one)]
    assert [(dims["cols"], dims["rows"]) for dims in begun] == [
        (256, 64), (512, 64),  # each a group of its own
        (256, 128), (256, 192),  # of the group that it has begun
        (1024, 64), (512, 128),  # of a group that nobody has begun, and at last what another would have taken
    ]  # fmt: skip
    assert not queue
