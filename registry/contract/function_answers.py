"""What the functions of an op's author return, refused where the host could not use it, with their lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ArgumentTypeError
from .definition_checks import definition_fault

if TYPE_CHECKING:
    from .op import Op


def drawn_values(op: Op, given: Any) -> tuple[Any, ...]:
    """The values that ``Op.inputs`` returned, one for each parameter of the schema, as those of a bound call.

    Raises InvalidDefinitionError unless it returned a tuple or a list of values that the schema takes.
    """
    hint = f"return one value for each argument of the schema, as a tuple: ({', '.join(op.parsed.names)},)"
    if not isinstance(given, tuple | list):
        raise definition_fault(op, f"inputs() returned a {type(given).__name__}", hint, op.inputs)
    if len(given) != len(op.parsed.names):
        told = f"inputs() returned {len(given)} values, expected {len(op.parsed.names)}"
        raise definition_fault(op, told, hint, op.inputs)
    try:
        return op.parsed.coerced(given)
    except ArgumentTypeError as fault:
        told = f"inputs() returned what the op does not take: {fault.message}"
        raise definition_fault(op, told, hint, op.inputs) from None


def refuse_verdict(op: Op, name: str, given: object) -> None:
    """Raise InvalidDefinitionError if ``check`` or ``check_data``, the function ``name``, returned anything.

    The host looks at nothing but what they raise: a verdict that is returned, or yielded, would be no check at all.
    """
    if given is not None:
        hint = f"raise registry.InvalidArgumentError for what no call could have, and return nothing from {name}()"
        raise definition_fault(op, f"{name}() returned {given!r:.80}", hint, getattr(op, name))
