"""Checks of a call with a packed argument, with messages about the user's parameters instead of the schema's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from ...arguments.schema import Parameter, by_name
from ...contract import Op, Packed
from ...errors import ArgumentTypeError


def users_parameters(op: Op, packed: Packed) -> list[Parameter]:
    """The parameters of the user's call: one packed parameter instead of its parts."""
    mine: list[Parameter] = []
    for parameter in op.parsed.parameters:
        if parameter.name not in packed.parts:
            mine.append(parameter)
        elif all(other.name != packed.parameter for other in mine):
            mine.append(replace(parameter, name=packed.parameter, kind=packed.kind.__name__))
    return mine


def check_form(op: Op, args: Sequence[Any], attributes: Mapping[str, Any]) -> None:
    """Raise ArgumentTypeError for a user's call with a wrong number of arguments or an unknown one.

    Calls that give the parts one by one are left to the schema's check, wrong types to the op's ``flatten``.
    """
    if op.packed is None:
        return
    mine = users_parameters(op, op.packed)
    given = (*args, *attributes.values())
    in_parts = len(args) > len(mine) or any(name in op.packed.parts for name in attributes)
    if in_parts and not any(isinstance(value, op.packed.kind) for value in given):
        return
    by_name(mine, args, attributes, partial(_refuse, op, mine))


def _refuse(op: Op, mine: Sequence[Parameter], message: str) -> NoReturn:
    shown = ", ".join(f"{parameter.kind} {parameter.name}" for parameter in mine)
    raise ArgumentTypeError(f"{op.name}: {message}", hint=f"expected {op.name}({shown})")
