"""Checks that need a GPU: numbers at tuned shapes, capture and replay, and two streams at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch

import tuning_db
from tuning_db import TuningDBError

from ..arguments.schema import tensors_in, with_tensors
from ..contract import Op, as_tuple
from ..correctness.output_faults import poison
from ..device import Device
from ..discovery import answers
from ..dispatch.plans.plan import Candidate, Plan, build
from ..errors import RegistryError
from ..implementation import Implementation
from ..problem import Problem
from ..testing import check_implementation
from ..testing.given_inputs import SEED
from ..testing.run_faults import Expected, concurrent_faults
from ..tuner.measure.capture import CaptureError, Graph
from ..tuner.planning.problems import needed_bytes
from .steps import CheckFinding, checked
from .target import catalog_with_plugin

MOST_TUNED = 4
"""Tuned shapes that are checked: each takes the whole of ``check_implementation``."""

_MEMORY_SHARE = 0.1
"""The most of the GPU's memory that a tuned shape needs: layouts and sizes of the check take a multiple of it."""

_WARM_CALLS = 2
_REPLAYS = 2


def tuned_shapes(target: str, op: str, name: str, device: str, database: str | None) -> CheckFinding:
    """Check the numbers of an implementation at shapes that have a winner for this hardware, the smallest first."""
    catalog = catalog_with_plugin(target)
    contract, there = catalog.op(op), Device.of(device)
    found = sorted(
        (needed_bytes(contract, problem), number, problem)
        for number, problem in enumerate(_tuned(contract, there, database))
    )
    problems = [problem for size, _, problem in found if size <= _MEMORY_SHARE * there.memory_bytes][:MOST_TUNED]
    if not problems:
        return CheckFinding("skipped", f"no shape of {op} is tuned for {there.name}, or all are too large")
    implementation = catalog.implementation(op, name)
    return checked(lambda: check_implementation(implementation, contract, problems=problems, device=there))


def _tuned(op: Op, device: Device, database: str | None) -> Iterator[Problem]:
    # its first use imports SQLAlchemy, which takes 0.2 s, and each check has a process of its own
    with suppress(TuningDBError), tuning_db.Store.open(database, create=False, migrate=False) as store:
        for winner in store.winners(op=op.name, op_version=op.version, hardware=device.hardware()):
            with suppress(RegistryError):  # dimensions that the op no longer takes
                yield op.problem_of(winner.problem.dims)


def captured(target: str, op: str, name: str, device: str) -> CheckFinding:
    """Capture a call as a CUDA graph, and replay it into poisoned outputs, on the inputs that it was captured with."""
    catalog = catalog_with_plugin(target)
    implementation, there = catalog.implementation(op, name), Device.of(device)
    if not implementation.capturable:
        return CheckFinding("skipped", "it says that it cannot be captured")
    made = first_plan(catalog.op(op), implementation, there)
    if isinstance(made, CheckFinding):
        return made
    plan, values = made
    with torch.no_grad():
        try:
            fault = _replay_fault(plan, values, there)
        except CaptureError as raised:
            return CheckFinding("failed", f"it cannot be captured: {raised} (capturable = False says so)")
    return CheckFinding("failed", fault) if fault else CheckFinding("passed", "", {"problem": dict(plan.problem.dims)})


def _replay_fault(plan: Plan, values: tuple[Any, ...], device: Device) -> str:
    pristine = with_tensors(values, torch.clone)
    expected = Expected(plan, pristine)

    def restore() -> None:
        for tensor, was in zip(tensors_in(values), tensors_in(pristine), strict=True):
            tensor.copy_(was)

    for _ in range(_WARM_CALLS):
        plan(*values)
    restore()
    outputs: list[Any] = []
    graph = Graph(lambda: outputs.append(plan(*values)), device.torch)
    try:
        for number in range(_REPLAYS):
            restore()
            results = as_tuple(outputs[-1])
            if not plan.op.parsed.mutates:
                poison(results)
            graph.replay()
            torch.cuda.synchronize(device.torch)
            if fault := expected.fault(plan.op.results(results, values)):
                return f"replay {number + 1} of the captured call: {fault}"
    finally:
        graph.close()
    return ""


def two_streams(target: str, op: str, name: str, device: str) -> CheckFinding:
    """Check calls of two threads at once, each on a stream of its own."""
    catalog = catalog_with_plugin(target)
    there = Device.of(device)
    made = first_plan(catalog.op(op), catalog.implementation(op, name), there)
    if isinstance(made, CheckFinding):
        return made
    with torch.no_grad():
        faults = list(concurrent_faults(made[0], there))
    return CheckFinding("failed", "\n".join(faults)) if faults else CheckFinding("passed")


def first_plan(op: Op, implementation: Implementation, device: Device) -> tuple[Plan, tuple[Any, ...]] | CheckFinding:
    """The default candidate, bound for the first example that it supports, with inputs; else why there is none."""
    reasons: list[str] = []
    for dims in op.examples:
        problem = op.problem_of(dims)
        if refused := answers.refusals(implementation, problem, device):
            reasons += refused
            continue
        values = op.draw(problem, op.kinds[0], torch.Generator(device.torch).manual_seed(SEED))
        candidate = Candidate(implementation, answers.default_config(implementation, problem, device))
        return build(op, candidate, problem, op.arguments(values), device), values
    return CheckFinding("skipped", "\n".join(dict.fromkeys(reasons)) or "the op has no example")
