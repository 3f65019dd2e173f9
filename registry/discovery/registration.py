"""What an op or an implementation must be like to be registered."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from ..contract import Op
from ..errors import InvalidDefinitionError
from ..implementation import Implementation
from .backward_check import check_backward
from .hooks import DEFINES

_NAME = re.compile(r"[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)+\Z")


def check_new_op(op: Any, known: Mapping[str, Op], *, bare: bool = True) -> None:
    """Raise InvalidDefinitionError unless ``op`` is an Op of a free name that fits its backward op.

    Bare names may be kept for the box.
    """
    if not isinstance(op, Op):
        raise InvalidDefinitionError(f"it defines {op!r}, expected a registry.Op")
    if op.hook == DEFINES or any(op.hook == other.hook for other in known.values()):
        raise InvalidDefinitionError(f"it defines {op.name!r}, a name that is taken")
    if not bare and "::" not in op.name:
        raise InvalidDefinitionError(
            f"it defines {op.name!r}, but bare names belong to the ops in the box: name it vendor::{op.name}"
        )
    check_backward(op, known)


def check_implementation_of(
    op: Op, implementation: Any, known: Mapping[str, Implementation], others: Collection[str] = ()
) -> None:
    """Raise InvalidDefinitionError unless it is an Implementation of ``op`` of a free ``plugin.variant`` name.

    ``others`` are names of other plugins, which it must not call itself by.
    """
    where = f"its implementations of {op.name}"
    if isinstance(implementation, type) and issubclass(implementation, Implementation):
        raise InvalidDefinitionError(f"{where}: {implementation.__name__} is a class, expected an instance of it")
    if not isinstance(implementation, Implementation):
        raise InvalidDefinitionError(f"{where}: {implementation!r} is no Implementation")
    shown = type(implementation).__name__
    if getattr(implementation, "op", None) != op.name:
        raise InvalidDefinitionError(f"{where}: {shown}.op is {getattr(implementation, 'op', None)!r}")
    name = getattr(implementation, "name", None)
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidDefinitionError(f"{where}: {shown}.name is {name!r}, expected plugin.variant, e.g. 'acme.row'")
    if name in known:
        raise InvalidDefinitionError(
            f"{where}: the name {name!r} is taken by {known[name]!r}; the later one is refused"
        )
    if name.split(".")[0] in others:
        raise InvalidDefinitionError(f"{where}: {name!r} bears the name of another plugin, {name.split('.')[0]!r}")


def same_definition(one: Implementation, other: Implementation) -> bool:
    """Whether both are of one class, perhaps defined twice by running its definition again."""
    first, second = type(one), type(other)
    return (first.__module__, first.__qualname__) == (second.__module__, second.__qualname__)
