"""The hot path: flat functions for each op, generated from its schema.

A Python call, a tuple or a loop costs as much as the guard, so one function leads from the user's call to the plan. It
has the schema's parameters (a keyword or a default costs nothing), and contains all checks of a hit.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch.compiler import is_dynamo_compiling

from ...arguments.schema import Parameter
from ...contract import Op, Packed
from ...generated_code import OWN, function
from .packed_form import users_parameters
from .written_hit import HIT_NAMES, hit_lines


class _Missing:
    """The type of ``MISSING``."""


MISSING: Final = _Missing()
"""The value of a parameter that a call leaves out and that has no default."""

_FOUND_IN: Final = "registry.calls"
"""The module in which pickle finds the callables of the process's dispatcher."""

CallAnswer = Callable[[tuple[Any, ...], Mapping[str, Any]], Any]
"""``answer(args, attributes)``: the outputs of a call with these positional and named arguments."""


@dataclass(frozen=True)
class HotPath:
    """The functions that call one op.

    call   takes the arguments of a user's call; torch.compile may trace it
    taken  takes these arguments as a tuple and a dict, in half the time of ``call(*args, **attributes)``; only for a
           caller that knows torch.compile is not tracing
    flat   takes the schema's arguments in order, keyword-only ones by name. Must not be traced
    """

    call: Callable[..., Any]
    taken: CallAnswer
    flat: Callable[..., Any]


@dataclass(frozen=True)
class Around:
    """The objects and functions that the functions of one op use.

    While one of the two ``watchers`` is ``active``, ``slow`` answers every call; it also does when a plan raises and
    ``may_retry(fault, resolved, values)`` is True. ``profiled(resolved, run, *values)`` runs a hit of a profiled call.
    ``another_size(values)`` returns a tuple with the outputs of a call that is not in the table but differs from one in
    it in sizes alone; None for other calls. ``generic`` answers any form of a user's call, ``traced`` a call that
    torch.compile traces.
    """

    table: Any
    watchers: tuple[Any, Any]
    slow: CallAnswer
    another_size: Callable[[tuple[Any, ...]], tuple[Any] | None]
    generic: CallAnswer
    traced: CallAnswer
    may_retry: Callable[[Exception, Any, tuple[Any, ...]], bool]
    profiled: Callable[..., Any]


def hot_path(op: Op, around: Around, *, checked: bool = False) -> HotPath:
    """The functions for ``op``. ``checked``: no call is a hit, since ``around.slow`` checks the data of each."""
    parameters = op.parsed.parameters
    if checked or not all(_usable(parameter.name) for parameter in parameters):
        return _generic(around, lambda *args, **attributes: around.slow(args, attributes))
    known = _names(around)
    slow = f"$slow(*{_given(parameters, False)})"
    # where there are weights, the entries of an activation's shape differ in these
    hit = hit_lines(parameters, parameters, slow, ints_first=not op.weights)
    flat = _made(op, "flat", _signature(parameters, False), hit, known)
    if op.flatten is not None:
        return _generic(around, flat) if op.packed is None else _packed(op, op.packed, around, flat)
    again = _given(parameters, True)
    body = [f"if $tracing(): return $traced(*{again})", f"if $more or $unknown: return $slow(*{again})"]
    call = _made(op, "call", _signature(parameters, True), [*body, *hit], known)
    hit = hit_lines(parameters, parameters, "$slow($args, $attributes)", ints_first=not op.weights)
    return HotPath(call, _made(op, "taken", "$args, $attributes", [*_taking(parameters), *hit], known), flat)


def _packed(op: Op, packed: Packed, around: Around, flat: Callable[..., Any]) -> HotPath:
    """The functions for an op whose usual call has a packed argument."""
    mine = users_parameters(op, packed)
    known = {**_names(around), "Packed": packed.kind}
    # a packed object has refused nested tensors when it was made
    hit = hit_lines(op.parsed.parameters, mine, "$generic($args, $attributes)")
    body = [*_taking(mine), *_unpacking(packed), *hit]
    known["taken"] = taken = _made(op, "taken", "$args, $attributes", body, known)
    body = [f"$args, $attributes = {_given(mine, True)}", "if $tracing(): return $traced($args, $attributes)"]
    body = ["if $tracing() or $more or $unknown:", *(f"    {line}" for line in body)]
    body += ["    return $generic($args, $attributes)", *_unpacking(packed, _given(mine, False))]
    hit = hit_lines(op.parsed.parameters, mine, f"$generic(*{_given(mine, False)})")
    return HotPath(_made(op, "call", _signature(mine, True), [*body, *hit], known), taken, flat)


def _generic(around: Around, flat: Callable[..., Any]) -> HotPath:
    """The functions for any schema and any ``flatten``, at the price of two more Python calls."""

    def call(*args: Any, **attributes: Any) -> Any:
        return around.traced(args, attributes) if is_dynamo_compiling() else around.generic(args, attributes)

    return HotPath(call, around.generic, flat)


def _usable(name: str) -> bool:
    return not keyword.iskeyword(name)


def _names(around: Around) -> dict[str, Any]:
    return {
        "MISSING": MISSING,
        **HIT_NAMES,
        "given": given,
        "tracing": is_dynamo_compiling,
        "table": around.table,
        "forcing": around.watchers[0],
        "recorder": around.watchers[1],
        "slow": around.slow,
        "another_size": around.another_size,
        "generic": around.generic,
        "traced": around.traced,
        "may_retry": around.may_retry,
        "profiled": around.profiled,
    }


def given(
    names: tuple[str, ...], positional: int, values: tuple[Any, ...], more: tuple[Any, ...], unknown: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call's positional and named arguments, reconstructed from the values of its parameters."""
    # with more positional arguments than there are parameters, all parameters were given by position
    args = (*values[:positional], *more) if more else ()
    first = positional if more else 0
    # not "is": Dynamo of torch 2.11 cannot compare a symbolic number with an object
    pairs = zip(names[first:], values[first:], strict=True)
    named = {name: value for name, value in pairs if not isinstance(value, _Missing)}
    return args, {**named, **unknown}


def _signature(parameters: Sequence[Parameter], open_ended: bool) -> str:
    """The signature as text. ``open_ended``: it takes any further arguments, which the slow path refuses; 0.04 µs."""
    shown = {parameter: f"{parameter.name}={_default(parameter)}" for parameter in parameters}
    positional = [text for parameter, text in shown.items() if not parameter.keyword_only]
    named = [text for parameter, text in shown.items() if parameter.keyword_only]
    star = ["*$more"] if open_ended else ["*"] if named else []
    return ", ".join([*positional, *star, *named, *(["**$unknown"] if open_ended else [])])


def _unpacking(packed: Packed, again: str = "") -> list[str]:
    """Lines that unpack the packed argument, or leave a call without one to ``generic``."""
    given = f"*{again}" if again else "$args, $attributes"
    return [
        f"if $type({packed.parameter}) is not $Packed: return $generic({given})",
        *(f"{name} = {packed.parameter}.{path}" for name, path in packed.parts.items()),
    ]


def _taking(parameters: Sequence[Parameter]) -> list[str]:
    """Lines that set the parameters from ``$args`` and ``$attributes``, or leave the call to ``generic``."""
    positional = [parameter.name for parameter in parameters if not parameter.keyword_only]
    lines = ["$count = $len($args)"]
    for count in range(len(positional), -1, -1):
        rest = parameters[count:]
        lines.append(f"{'if' if count == len(positional) else 'elif'} $count == {count}:")
        lines += [f"    {', '.join(positional[:count])}, = $args"] if count else []
        lines.append(f"    if not $attributes: {_defaults(rest)}")
        if rest:
            lines.append(
                f"    elif $len($attributes) == {' + '.join(f'({one.name!r} in $attributes)' for one in rest)}:"
            )
            lines.append(f"        {_named(rest)}")
        lines.append("    else: return $generic($args, $attributes)")
    return [*lines, "else: return $generic($args, $attributes)"]


def _defaults(parameters: Sequence[Parameter]) -> str:
    return "; ".join(f"{one.name} = {_default(one)}" for one in parameters) or "pass"


def _named(parameters: Sequence[Parameter]) -> str:
    if len(parameters) == 1:
        return f"{parameters[0].name} = $attributes[{parameters[0].name!r}]"
    return "; ".join(f"{one.name} = $attributes.get({one.name!r}, {_default(one)})" for one in parameters)


def _default(parameter: Parameter) -> str:
    return "$MISSING" if parameter.required else f"$default_{parameter.name}"


def _given(parameters: Sequence[Parameter], open_ended: bool) -> str:
    names = tuple(parameter.name for parameter in parameters)
    positional = sum(not parameter.keyword_only for parameter in parameters)
    values = "".join(f"{name}, " for name in names)
    return f"$given({names!r}, {positional}, ({values}), {'$more, $unknown' if open_ended else '(), {}'})"


def _made(op: Op, name: str, signature: str, body: Sequence[str], known: Mapping[str, Any]) -> Callable[..., Any]:
    """The generated function, with the name and module by which pickle finds it."""
    parameters = op.parsed.parameters
    defaults = {f"default_{parameter.name}": parameter.default for parameter in parameters if not parameter.required}
    others = [*op.parsed.names, *([op.packed.parameter] if op.packed is not None else [])]
    # the globals have no __name__, or torch.compile would look for these names in this module
    made = function(f"{OWN}{name}", signature, body, {**known, **defaults}, others)
    made.__qualname__ = made.__name__ = op.hook
    made.__module__ = _FOUND_IN
    made.__doc__ = op.schema
    return made
