"""The ops of a run whose tolerance accepts what was not computed: they are left out, and the others are tuned."""

from __future__ import annotations

from collections.abc import Iterable

from ..contract import Op
from ..errors import InvalidDefinitionError
from .tolerance_check import refuse_blind


def blind_among(ops: Iterable[Op]) -> dict[str, str]:
    """The reason against each op that ``refuse_blind`` refuses, by name. Raises the first error if it refuses all."""
    faults: dict[str, InvalidDefinitionError] = {}
    every = list(dict.fromkeys(ops))
    for op in every:
        try:
            refuse_blind(op)
        except InvalidDefinitionError as fault:
            faults[op.name] = fault
    if faults and len(faults) == len(every):
        raise faults[every[0].name]
    return {name: _reason(name, fault) for name, fault in faults.items()}


def _reason(name: str, fault: InvalidDefinitionError) -> str:
    told = fault.message.removeprefix(f"op {name!r}: ")
    return f"{told}; {fault.hint}" if fault.hint else told
