"""Implementations of the registry as contestants: each with its default configuration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from registry import Device, Implementation, Op, Problem, RegistryError
from registry.dispatch.plans.plan import Candidate, build

from .device_timing import Call


def with_defaults(
    op: Op, problem: Problem, implementations: Iterable[Implementation], values: tuple[Any, ...], device: Device
) -> tuple[dict[str, Call], dict[str, str]]:
    """Calls by name, and the faults of implementations that cannot be captured, or whose default does not compile."""
    calls: dict[str, Call] = {}
    faults: dict[str, str] = {}
    for each in implementations:
        if not each.capturable:
            faults[each.name] = "it waits for the device at each call, and cannot be captured"
            continue
        try:
            candidate = Candidate(each, each.default(problem, device))
            calls[each.name] = build(op, candidate, problem, op.arguments(values), device)
        except RegistryError as fault:
            faults[each.name] = fault.message.splitlines()[0]
    return calls, faults
