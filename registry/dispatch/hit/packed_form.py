"""The form of a call whose usual argument is packed: mistakes are told in the user's terms, not in the schema's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from ...arguments.schema import Parameter
from ...contract import Op, Packed
from ...errors import ArgumentTypeError


def users_parameters(op: Op, packed: Packed) -> list[Parameter]:
    """The parameters of the user's call: the packed one stands for its parts."""
    mine: list[Parameter] = []
    for parameter in op.parsed.parameters:
        if parameter.name not in packed.parts:
            mine.append(parameter)
        elif all(other.name != packed.parameter for other in mine):
            mine.append(replace(parameter, name=packed.parameter, kind=packed.kind.__name__))
    return mine


def check_form(op: Op, args: Sequence[Any], attributes: Mapping[str, Any]) -> None:
    """Raise ArgumentTypeError for a call that was meant in the user's terms and has another number of arguments.

    What gives the parts one by one is the schema's to check, and a value of another type the op's own flattening's.
    """
    if op.packed is None:
        return
    mine = users_parameters(op, op.packed)
    given = (*args, *attributes.values())
    in_parts = len(args) > len(mine) or any(name in op.packed.parts for name in attributes)
    if in_parts and not any(isinstance(value, op.packed.kind) for value in given):
        return
    positional = [parameter.name for parameter in mine if not parameter.keyword_only]
    if len(args) > len(positional):
        _refuse(op, mine, f"{len(args)} positional arguments given, at most {len(positional)} expected")
    known = {parameter.name for parameter in mine}
    for name in attributes:
        if name in positional[: len(args)]:
            _refuse(op, mine, f"{name} was given twice")
        if name not in known:
            _refuse(op, mine, f"no argument {name!r}")
    there = {*positional[: len(args)], *attributes}
    if missing := [parameter.name for parameter in mine if parameter.required and parameter.name not in there]:
        _refuse(op, mine, f"missing {', '.join(missing)}")


def _refuse(op: Op, mine: Sequence[Parameter], message: str) -> NoReturn:
    shown = ", ".join(f"{parameter.kind} {parameter.name}" for parameter in mine)
    raise ArgumentTypeError(f"{op.name}: {message}", hint=f"expected {op.name}({shown})")
