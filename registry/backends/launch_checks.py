"""Checks of an author's launches that every backend makes, with the line of the author's code in each message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..artifact import Signature
from ..author_code import at_method
from ..errors import InvalidDefinitionError, MisnamedError
from ..implementation import Implementation, Launch
from ..problem import TensorSpec


def launches_of(implementation: Implementation, given: Any) -> tuple[Launch, ...]:
    """The launches that ``launch`` returned, one or several, as a tuple. Raises InvalidDefinitionError."""
    if isinstance(given, Launch):
        return (given,)
    launches = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else ()
    if not launches or not all(isinstance(launch, Launch) for launch in launches):
        place = at_method(implementation, "launch")
        raise InvalidDefinitionError(
            f"{implementation.name}: launch() returned {given!r:.80}, expected a Launch or several in order{place}"
        )
    return launches


def argument_of(launch: Launch, kernel: str, name: str, signature: Signature) -> Any:
    """The spec or value that an argument of a launch names. Raises MisnamedError with the names that there are."""
    try:
        return signature[name]
    except KeyError:
        groups = (signature.outputs, signature.arguments.values, signature.scratch, signature.prepared)
        known = [each for group in groups for each in group]
        raise MisnamedError("argument", name, known, f"of {kernel} in the Launch at {launch.place}") from None


def refuse_empty(launches: Sequence[Launch], signature: Signature) -> None:
    """Raise InvalidDefinitionError when no launch has a program to run, although there is something to compute."""
    empty = [launch for launch in launches if any(type(extent) is int and extent == 0 for extent in launch.grid)]
    written = [spec for spec in signature.outputs.values() if isinstance(spec, TensorSpec)]
    if len(empty) == len(launches) and any(type(spec.numel) is int and spec.numel > 0 for spec in written):
        fault = f"the grid is {empty[0].grid}, so that nothing runs, although the outputs are not empty"
        raise empty[0].fault(fault, "does a division of the size round down? use -(-size // block)")
