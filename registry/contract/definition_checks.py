"""Checks of an op when it is defined: its names, its dimensions, and whether its reference takes what is given."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

from ..author_code import at
from ..errors import InvalidDefinitionError, UnknownNameError
from ..problem import Problem, check_choices
from .field_checks import check_fields
from .tolerance import Tolerance

if TYPE_CHECKING:
    from .op import Op

COUNT = "count"
"""The key in a shapes file, beside dimensions, for the number of a program's calls. No dimension may be named so."""

_TAKEN = frozenset(dir(Problem)).union(Problem.__dataclass_fields__)
"""What reads as an attribute of any problem: a dimension of such a name would be hidden behind it."""

_NAME = re.compile(r"([a-z][a-z0-9_]*::)?[a-z][a-z0-9_]*\Z")


def definition_fault(op: Op, told: str, hint: str, function: object = None) -> InvalidDefinitionError:
    """An error about an op's definition, with the line of the author's ``function`` where that is known."""
    return InvalidDefinitionError(f"op {op.name!r}: {told}{'' if function is None else at(function)}", hint=hint)


def check_name(op: Op) -> None:
    """Raise InvalidDefinitionError unless the op has a name that its schema has, too."""
    if not _NAME.match(op.name):
        raise InvalidDefinitionError(
            f"op name {op.name!r}", hint="expected lower_case, or vendor::lower_case for an op of your own"
        )
    if op.parsed.name != op.name:
        raise InvalidDefinitionError(
            f"op {op.name!r}: its schema is named {op.parsed.name!r}", hint=f"begin the schema with {op.name}("
        )


def check_definition(op: Op) -> None:
    """Raise InvalidDefinitionError for an op that no call could use; its sets of names are frozen before."""
    _check_dimensions(op)
    if not op.kinds:
        raise definition_fault(op, "no input kinds", 'name at least one kind of data that inputs() draws: ("normal",)')
    _check_tensors(op)
    for name, values in op.named_values.items():
        check_choices(op.name, name, values)
    _check_transfers(op)
    _check_reference(op)
    check_fields(op)
    for name in {**op.tolerances, **op.compare}:
        if name not in op.parsed.results:
            raise InvalidDefinitionError(f"op {op.name!r}: {UnknownNameError('result', name, op.parsed.results)}")


def check_tolerance(op: Op) -> None:
    """Raise InvalidDefinitionError unless the op's tolerance is a Tolerance."""
    if not isinstance(op.tolerance, Tolerance):
        hint = "expected a registry.Tolerance(rtol={...}, atol={...}, scale=...)"
        raise InvalidDefinitionError(f"op {op.name!r}: its tolerance is {op.tolerance!r:.80}", hint=hint)


def _check_dimensions(op: Op) -> None:
    if both := op.static & op.dynamic:
        hint = "a dimension is in one of static (of which choices and distributions are a part) and dynamic"
        raise definition_fault(op, f"{sorted(both)} both static and dynamic", hint)
    for name in sorted(op.static | op.dynamic):
        if hint := _hint_of_dimension(name):
            raise definition_fault(op, f"a dimension named {name!r}", hint)


def _hint_of_dimension(name: str) -> str:
    """What to do about a name that no dimension may have; empty for others."""
    if name == COUNT:
        return "a shapes file says by that name how often a problem is called; take another"
    if name in _TAKEN:
        return f"problem.{name} is something else for the problems of every op; take another"
    return "" if name.isidentifier() else "expected a name as in Python, since problem.<name> reads it"


def _check_tensors(op: Op) -> None:
    tensors = [parameter.name for parameter in op.parsed.parameters if parameter.holds_tensors]
    if not tensors:
        raise definition_fault(op, "it takes no tensor", "a call runs on the device of its tensors: take one")
    for told, names in (("weights", op.weights), ("independent", op.independent)):
        for name in sorted(names.difference(tensors)):
            raise InvalidDefinitionError(f"op {op.name!r}: {told}: {UnknownNameError('tensor', name, tensors)}")
    numbers = [parameter.name for parameter in op.parsed.parameters if parameter.kind in {"float", "int"}]
    for name in sorted(op.numbers.difference(numbers)):
        raise InvalidDefinitionError(f"op {op.name!r}: numbers: {UnknownNameError('number', name, numbers)}")


def _check_transfers(op: Op) -> None:
    sizes = op.static - op.named_values.keys() - {"dtype"}
    for name, declared in op.transfers.items():
        if name not in sizes:
            hint = f"its static sizes are {', '.join(sorted(sizes)) or 'none'}; dynamic ones transfer anyway"
            raise definition_fault(op, f"transfers: {name} is no static size", hint)
        if not callable(declared):
            hint = f"expected a function of a size, e.g. {{{name!r}: registry.octave}}"
            raise definition_fault(op, f"transfers: the range of {name} is {declared!r:.80}", hint)


def _check_reference(op: Op) -> None:
    """Raise InvalidDefinitionError unless the reference takes the schema's arguments, as far as Python tells."""
    names = op.parsed.names
    hint = f"it takes the schema's arguments in order: ({', '.join(names)})"
    if not callable(op.reference):
        raise definition_fault(op, f"its reference is {op.reference!r:.80}", hint)
    try:
        signature = inspect.signature(op.reference, follow_wrapped=False)
    except (TypeError, ValueError):  # of a function in C: its signature is not known
        return
    try:
        signature.bind(*names)
    except TypeError as fault:
        told = f"its reference, which takes {signature}, cannot be called with the schema's arguments: {fault}"
        raise definition_fault(op, told, hint, op.reference) from None
