"""Evidence in the database that an op's winner is faster than torch's own function and than Inductor's code."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...arguments.schema import tensors_in
from ...contract import Op
from ...device import Device
from ...dispatch.resolve.answers_or_faults import refusals
from ...dispatch.resolve.candidates import Plans
from ...dispatch.resolve.resolution import Choice, choices
from ...errors import RegistryError

TORCHS = ("torch.native", "torch.compile")
"""The implementations that stand for torch's own function, and for what Inductor compiles."""


def reason_to_leave(op: Op, plans: Plans, values: tuple[Any, ...]) -> str:
    """Why torch's function stays; "" if the winner is to take its place.

    ``values``: the op's arguments in the schema's order, with fake tensors. The winner must be of exactly this problem,
    or of one that dispatch transfers to it; be none of ``TORCHS``; and have been measured as faster than those of them
    that can run the problem.
    """
    try:
        arguments = op.arguments(op.parsed.coerced(values))
        problem = op.pose(arguments)
        device = Device.of(tensors_in(values)[0].device)
        first = next(choices(plans.situation(problem, device), None, []))
    except RegistryError as fault:
        return fault.message
    able = [one.name for one in plans.implementations if one.name in TORCHS and not refusals(one, problem, device)]
    return _doubt(first, able)


def _doubt(choice: Choice, able: Collection[str]) -> str:
    """Why a choice may not take the place of torch's function; ``able``: those of ``TORCHS`` that run the problem."""
    if choice.candidate is None or choice.decision is None or choice.step not in {"exact", "nearest"}:
        return "no winner is known for it: tune it"
    name, ratios = choice.candidate.implementation.name, choice.decision.baselines
    if name in TORCHS:
        return f"{name} won"
    unmeasured = [one for one in able if one not in ratios]
    if unmeasured:
        return f"{name} won, but was not measured beside {' and '.join(unmeasured)}"
    slower = [one for one in TORCHS if one in ratios and ratios[one] <= (choice.over or 1.0)]
    return f"{name} was not faster than {' and '.join(slower)}" if slower else ""
