"""Evidence in the database that an op's winner is faster than torch's own function and than Inductor's code."""

from __future__ import annotations

from typing import Any

import torch

from ...arguments.schema import tensors_in
from ...contract import Op
from ...device import Device
from ...dispatch.resolve.candidates import Plans
from ...dispatch.resolve.resolution import Choice, choices
from ...errors import RegistryError

TORCHS = ("torch.native", "torch.compile")
"""The implementations that stand for torch's own function, and for what Inductor compiles."""


def reason_to_leave(op: Op, plans: Plans, values: tuple[Any, ...]) -> str:
    """Why torch's function stays; "" if the winner is to take its place.

    ``values``: the op's arguments in the schema's order, with fake tensors. The winner must be of exactly this problem,
    or of one that dispatch transfers to it; be none of ``TORCHS``; and have been measured as faster than both, or than
    the one of them that can run the problem.
    """
    try:
        arguments = op.arguments(op.parsed.coerced(values))
        problem = op.pose(arguments)
        device = Device.of(tensors_in(values)[0].device)
        first = next(choices(plans.situation(problem, device), None, []))
    except RegistryError as fault:
        return fault.message
    return _doubt(first)


def _doubt(choice: Choice) -> str:
    if choice.candidate is None or choice.decision is None or choice.step not in {"exact", "nearest"}:
        return "no winner is known for it: tune it"
    name = choice.candidate.implementation.name
    if name in TORCHS:
        return f"{name} won"
    times = {one: ratio for one, ratio in choice.decision.baselines.items() if one in TORCHS}
    if not times:
        return f"{name} won, but was not measured beside {' or '.join(TORCHS)}"
    slower = [one for one, ratio in times.items() if ratio <= (choice.over or 1.0)]
    return f"{name} was not faster than {' and '.join(slower)}" if slower else ""


def is_static(values: tuple[Any, ...]) -> bool:
    """True if all sizes, strides and numbers are known while the graph is compiled."""
    numbers: list[Any] = []
    for value in values:
        numbers += [*value.shape, *value.stride()] if isinstance(value, torch.Tensor) else [value]
    return not any(isinstance(one, torch.SymInt | torch.SymFloat | torch.SymBool) for one in numbers)
