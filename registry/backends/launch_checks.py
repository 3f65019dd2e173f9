"""Checks of an author's launches that every backend makes, with the line of the author's code in each message."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from numbers import Integral, Real
from typing import Any

from ..artifact import RunItem, Signature
from ..author_code import at_method, where_raised, where_written
from ..device import Device
from ..errors import CompileError, InvalidDefinitionError, MisnamedError
from ..implementation import Implementation, Launch
from ..problem import Problem, TensorSpec
from ..space import Config


class _NamedConfig(dict[str, Any]):
    """A configuration; ``unknown`` is the parameter without a value that was read last."""

    unknown: object = None

    def __missing__(self, name: object) -> Any:
        self.unknown = name
        raise KeyError(name)


def launches_for(implementation: Any, problem: Problem, config: Config, device: Device) -> tuple[Launch, ...]:
    """What ``launch`` of an implementation returns, as a tuple.

    Raises MisnamedError with the known names for a parameter that the configuration lacks, InvalidDefinitionError for
    what is no launch, and other exceptions of ``launch``.
    """
    try:
        given = implementation.launch(problem, config, device)
    except KeyError as fault:
        named = _NamedConfig(config)
        # only a configuration that notes what is read tells its names from those of the author's other mappings
        with suppress(Exception):
            implementation.launch(problem, named, device)
        if named.unknown is None or fault.args != (named.unknown,):
            raise
        place = where_raised(fault, implementation)
        where = f"in launch() of {implementation.name}{place}"
        raise MisnamedError("parameter", str(named.unknown), config, where) from fault
    return (given,) if type(given) is Launch else launches_of(implementation, given)


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


def macro_values(launch: Launch) -> dict[str, bool | int | float | str]:
    """The constants of a launch, as macros of C++ or CUDA can hold them.

    Raises InvalidDefinitionError for a value that is no bool, finite number or text.
    """
    return {name: _macro_value(launch, name, value) for name, value in launch.constants.items()}


def _macro_value(launch: Launch, name: str, value: Any) -> bool | int | float | str:
    if isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    raise launch.fault(
        f"the constant {name} is {value!r:.80}, which is no macro",
        "expected a bool, a finite number, or a text that stands in the kernel as it is, e.g. a type's name",
    )


def argument_of(launch: Launch, title: Callable[[], str], name: str, signature: Signature) -> RunItem:
    """The item of a run that ``name``, an argument of a launch, refers to. ``title`` names the kernel in a message.

    Raises MisnamedError with the known names, and InvalidDefinitionError for a list.
    """
    found = signature.operands.get(name)
    if found is None:
        raise MisnamedError("argument", name, signature.operands, f"of {title()} in the Launch at {launch.place}")
    if isinstance(found.value, tuple):
        raise InvalidDefinitionError(
            f"{signature.arguments.op}: {name} is a list, which no kernel takes",
            hint="run functional code that takes the list: returns_outputs = True",
        )
    return found


def placed(fault: CompileError, implementation: Implementation, source: str, unit: str) -> CompileError:
    """The fault with the author's line in front, if the compiler names a line of ``unit``, the kernel's text.

    It is the line of ``launch`` for a text that no file of the author holds, such as one that is put together. Text
    with ``#line`` directives gives its files itself.
    """
    named = re.search(rf"{re.escape(unit)}[(:](\d+)", f"{fault.message} {fault.hint}")
    if named is None:
        return fault
    module = sys.modules.get(type(implementation).__module__)
    place = where_written(source, int(named.group(1)), [module]) if module else ""
    place = place or at_method(implementation, "launch").strip(" ()")
    return type(fault)(f"{place}: {fault.message}", hint=fault.hint) if place else fault


def refuse_empty(launches: Sequence[Launch], signature: Signature) -> None:
    """Raise InvalidDefinitionError when no launch has a program to run, although there is something to compute."""
    empty = [launch for launch in launches if 0 in launch.grid]
    written = [spec for spec in signature.outputs.values() if isinstance(spec, TensorSpec)]
    if len(empty) == len(launches) and any(spec.numel > 0 for spec in written):
        fault = f"the grid is {empty[0].grid}, so that nothing runs, although the outputs are not empty"
        raise empty[0].fault(fault, "does a division of the size round down? use -(-size // block)")
