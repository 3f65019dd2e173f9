"""A worker: which candidates it meets with all probes in a trial, and that a verification meets them without timing."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from registry.artifact import Built
from registry.contracts import SQUARE
from registry.contracts.linear_backward import LINEAR_BACKWARD
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Plan
from registry.implementation import Implementation, Run
from registry.problem import Problem, Value
from registry.space import Config, Space
from registry.tuner.jobs import PROBED, UNTESTED, BlockJob, Entrant, Outcome, TrialJob, VerificationJob
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.measure.samplers import ClockSampler, Sampler
from registry.tuner.verify.probe_inputs import group_of
from registry.tuner.verify.timed import TimedPlan
from registry.tuner.workers.worker import Worker
from registry_torch.linear import LinearBackward

CPU = Device.of("cpu")
N = 1000
DIMS: dict[str, Value] = {"n": N, "dtype": "float32"}
PROTOCOL = dict(TimingProtocol.of(CPU).details)


class RightHere(Implementation):
    """Squares; after a nap, and at other sizes wrongly, if its configuration says so."""

    op, name = "square", "test.right_here"
    device_types = frozenset({"cpu"})

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(nap_ms=[0, 5], right_elsewhere=[True, False])

    def default(self, problem: Problem, device: Device) -> Config:
        return {"nap_ms": 0, "right_elsewhere": True}

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Any, arguments: Any, _scratch: Any) -> None:
            time.sleep(config["nap_ms"] / 1000)
            (y,), (x,) = outputs, arguments
            y.copy_(x * x)
            if len(x) != N and not config["right_elsewhere"]:
                y.zero_()

        return run


@pytest.fixture
def worker(catalog: Catalog) -> Worker:
    catalog.register(RightHere())
    return Worker(catalog, CPU)


def trial(worker: Worker, *, nap_ms: int, right_elsewhere: bool, best_us: float | None = None) -> Outcome:
    entrant = Entrant("test.right_here", {"nap_ms": nap_ms, "right_elsewhere": right_elsewhere})
    return worker.trial(TrialJob(1, "square", DIMS, entrant, PROTOCOL, 0, best_us), lambda step: None)


def verification(worker: Worker, *, right_elsewhere: bool, of_own_size: bool = False) -> Outcome:
    entrant = Entrant("test.right_here", {"nap_ms": 0, "right_elsewhere": right_elsewhere})
    job = VerificationJob(1, "square", DIMS, entrant, PROTOCOL, 0, of_own_size)
    return worker.verification(job, lambda step: None)


def test_launches_warm_up_on_a_copy_of_their_own(catalog: Catalog) -> None:
    made: list[object] = []

    class Noting(Worker):
        def _sampler(self, plan: Plan, timed: TimedPlan, *others: Any) -> Sampler:
            sampler = super()._sampler(plan, timed, *others)
            assert isinstance(sampler, ClockSampler)
            made.append(sampler._warm)
            assert timed.warm is sampler._warm
            return sampler

    catalog.register(RightHere())
    assert trial(Noting(catalog, CPU), nap_ms=0, right_elsewhere=True).status == "ok"
    assert made
    assert None not in made


def test_the_first_of_an_implementation_meets_the_probes_before_it_is_timed(worker: Worker) -> None:
    found = trial(worker, nap_ms=0, right_elsewhere=False)
    assert (found.status, found.median_us) == ("wrong_result", None)
    assert "not for square" in found.message


def test_a_later_one_meets_them_where_it_leads(worker: Worker) -> None:
    first = trial(worker, nap_ms=0, right_elsewhere=True)
    assert (first.status, first.details[PROBED]) == ("ok", True)
    behind = trial(worker, nap_ms=5, right_elsewhere=False, best_us=4_000.0)
    assert behind.status == "ok"
    assert PROBED not in behind.details
    leading = trial(worker, nap_ms=5, right_elsewhere=False, best_us=100_000.0)
    assert leading.status == "wrong_result"


def test_what_verification_could_not_test_is_a_detail_of_the_trial(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.register(RightHere())
    assert UNTESTED not in trial(Worker(catalog, CPU), nap_ms=0, right_elsewhere=True).details
    # before the worker is made, which finds code that is replaced later
    monkeypatch.setattr("registry.tuner.verify.verify.late_fault", lambda _: "no late inputs")
    found = trial(Worker(catalog, CPU), nap_ms=0, right_elsewhere=True)
    assert (found.status, found.message) == ("ok", "")
    assert found.details[UNTESTED] == "no late inputs"


def test_a_verification_meets_them_and_takes_no_time(worker: Worker) -> None:
    right = verification(worker, right_elsewhere=True)
    assert (right.status, right.samples, right.median_us) == ("ok", (), None)
    found = verification(worker, right_elsewhere=False)
    assert (found.status, found.median_us) == ("wrong_result", None)
    assert verification(worker, right_elsewhere=False, of_own_size=True).status == "ok"


class ShortOfMemory(Implementation):
    """Squares; the first ``lacking`` launches of it find no memory, as torch says it on a GPU of several processes."""

    op, name = "square", "test.short_of_memory"
    device_types = frozenset({"cpu"})
    lacking = 0

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Any, arguments: Any, _scratch: Any) -> None:
            if self.lacking:
                self.lacking -= 1
                raise torch.OutOfMemoryError(TOLD_BY_TORCH)
            torch.square(arguments[0], out=outputs[0])

        return run


TOLD_BY_TORCH = (
    "CUDA out of memory. Tried to allocate 7.83 GiB. GPU 0 has a total capacity of 139.80 GiB of which 4.49 GiB is"
    " free. Including non-PyTorch memory, this process has 128.67 GiB memory in use. Process 915 has 612.00 MiB memory"
    " in use. Of the allocated memory 86.96 GiB is allocated by PyTorch. See documentation for Memory Management"
)


@pytest.fixture
def short(catalog: Catalog) -> ShortOfMemory:
    implementation = ShortOfMemory()
    catalog.register(implementation)
    return implementation


def short_trial(worker: Worker, n: int) -> Outcome:
    job = TrialJob(1, "square", {"n": n, "dtype": "float32"}, Entrant("test.short_of_memory", {}), PROTOCOL, 0)
    return worker.trial(job, lambda step: None)


def test_memory_that_other_problems_held_is_freed_and_the_trial_made_again(
    worker: Worker, short: ShortOfMemory
) -> None:
    assert short_trial(worker, N + 1).status == "ok"
    short.lacking = 1
    assert short_trial(worker, N).status == "ok"
    short.lacking = 1000
    found = short_trial(worker, N)
    assert found.status == "out_of_memory"
    # the second try finds nothing else to free
    assert short.lacking >= 998


def test_a_candidate_that_lacks_memory_alone_fails_with_what_torch_says_of_it_alone(
    worker: Worker, short: ShortOfMemory
) -> None:
    short.lacking = 1
    found = short_trial(worker, N)
    assert (found.status, short.lacking) == ("out_of_memory", 0)
    assert found.message.endswith("of which 4.49 GiB is free.")
    assert short_trial(worker, N).status == "ok"


@pytest.mark.thorough
def test_an_entrant_of_the_finals_is_given_the_memory_of_other_problems_too(
    worker: Worker, short: ShortOfMemory
) -> None:
    job = BlockJob(1, "square", DIMS, (Entrant("test.short_of_memory", {}),), PROTOCOL, 0, 1)
    short.lacking = 1
    assert worker.block(job, lambda step: None).faults[0].startswith("out_of_memory")
    assert short_trial(worker, N + 1).status == "ok"
    short.lacking = 1
    assert worker.block(job, lambda step: None).faults == ("",)


class EmptyFirst(Implementation):
    """The gradients of linear, returned; that of x is not needed, so that the first output is empty."""

    op, name = "linear_backward", "test.returned"
    device_types = frozenset({"cpu"})
    returns_outputs = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        return lambda _outputs, arguments, _scratch: LINEAR_BACKWARD.reference(*arguments)


def needing_no_x(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    *given, _, need_weight, need_bias = LINEAR_BACKWARD.inputs(problem, kind, generator)
    return *given, False, need_weight, need_bias


@pytest.mark.parametrize("name", ["torch.native", "test.returned"])
@pytest.mark.few(1)
def test_an_output_may_be_empty_before_or_after_others(name: str) -> None:
    """Without a bias it has no gradient, and without a need for it nor has x."""
    catalog = Catalog(entry_points=())
    catalog.define(replace(LINEAR_BACKWARD, name="acme::lb", schema=RENAMED, inputs=needing_no_x))
    for implementation in (EmptyFirst(), LinearBackward()):
        implementation.op = "acme::lb"
        catalog.register(implementation)
    dims: dict[str, Value] = {"m": 32, "n": 48, "k": 16, "dtype": "float32", "bias": False}
    job = TrialJob(1, "acme::lb", dims, Entrant(name, {}), PROTOCOL, 0)
    found = Worker(catalog, CPU).trial(job, lambda step: None)
    assert (found.status, found.message) == ("ok", "")


RENAMED = LINEAR_BACKWARD.schema.replace("linear_backward", "acme::lb", 1)


def held_bytes() -> int:
    """Bytes of all tensors' memory in this process."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if isinstance(each, torch.Tensor)]
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


@pytest.mark.thorough
def test_what_is_held_does_not_grow_with_the_number_of_problems(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    # before the worker is made, which puts changed constants of ours back
    monkeypatch.setattr("registry.tuner.verify.session._MOST_SESSIONS", 2)
    worker: Worker = request.getfixturevalue("worker")
    entrant, held = Entrant("test.right_here", {"nap_ms": 0, "right_elsewhere": True}), []
    before = held_bytes()
    for n in range(5_000, 5_018):
        job = VerificationJob(1, "square", {"n": n, "dtype": "float32"}, entrant, PROTOCOL, 0)
        assert worker.verification(job, lambda step: None).status == "ok"
        held.append(held_bytes() - before)
    assert held[0] > 1 << 19
    assert max(held[9:]) < 1.05 * max(held[:9])
    # what all problems share is made once
    assert group_of(SQUARE, SQUARE.problem_of({"n": N, "dtype": "float32"})) in worker._probes._groups
