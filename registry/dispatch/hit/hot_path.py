"""The hot path: flat functions for each op, written from its schema.

A Python call, a tuple and a loop cost as much as the guard itself, so there is one function from the user's call to the
plan: the schema's parameters are its own (a keyword or a default costs nothing), and what a hit must ask is in line.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import is_grad_enabled
from torch.compiler import is_dynamo_compiling

from ...arguments.schema import Parameter
from ...contract import Op, Packed
from ...generated_code import OWN, function
from ..torch_side.torch_private import dispatch_modes, forward_level
from .free import same_zero
from .packed_form import users_parameters


class _Missing:
    """The type of ``MISSING``."""


MISSING: Final = _Missing()
"""The value of a parameter that a call leaves out and that has no default."""

_FOUND_IN: Final = "registry.calls"
"""The module in which pickle finds the calls of the process's own dispatcher."""

Answer = Callable[[tuple[Any, ...], Mapping[str, Any]], Any]
"""Answers a call by its positional and its named arguments."""


@dataclass(frozen=True)
class HotPath:
    """The ways into one op.

    call   as a user writes it; torch.compile may trace it
    taken  the same with the arguments as a tuple and a dict, for a caller that knows torch.compile is not tracing:
           handing them on as they are costs half of writing them out again
    flat   in the schema's own terms, in its order; keyword-only ones by name. Not traced
    """

    call: Callable[..., Any]
    taken: Answer
    flat: Callable[..., Any]


@dataclass(frozen=True)
class Around:
    """What the functions of one op reach for.

    While one of the two ``watchers`` is ``active`` every call is ``slow``'s to answer, and so is one whose plan raises
    what ``may_retry(fault, grad, resolved)`` allows. ``generic`` answers any form of a call in the user's terms,
    ``traced`` while torch.compile traces.
    """

    table: Any
    watchers: tuple[Any, Any]
    slow: Answer
    generic: Answer
    traced: Answer
    may_retry: Callable[[Exception, bool | None, Any], bool]


def hot_path(op: Op, around: Around) -> HotPath:
    """The functions for ``op``."""
    parameters = op.parsed.parameters
    if op.parsed.has_lists or not all(_usable(parameter.name) for parameter in parameters):
        return _generic(around, lambda *args, **attributes: around.slow(args, attributes))
    known = _names(around)
    slow = f"$slow(*{_given(parameters, False)})"
    flat = _made(op, "flat", _signature(parameters, False), _hit(parameters, parameters, slow), known)
    if op.flatten is not None:
        return _generic(around, flat) if op.packed is None else _packed(op, op.packed, around, flat)
    again = _given(parameters, True)
    body = [f"if $tracing(): return $traced(*{again})", f"if $more or $unknown: return $slow(*{again})"]
    call = _made(op, "call", _signature(parameters, True), [*body, *_hit(parameters, parameters, slow)], known)
    body = [*_taking(parameters), *_hit(parameters, parameters, "$slow($args, $attributes)")]
    return HotPath(call, _made(op, "taken", "$args, $attributes", body, known), flat)


def _packed(op: Op, packed: Packed, around: Around, flat: Callable[..., Any]) -> HotPath:
    """For an op whose usual call has an argument that stands for several."""
    mine = users_parameters(op, packed)
    known = {**_names(around), "Packed": packed.kind}
    # a packed object has refused nested tensors when it was made
    hit = _hit(op.parsed.parameters, mine, "$generic($args, $attributes)")
    body = [*_taking(mine), *_unpacking(packed), *hit]
    known["taken"] = taken = _made(op, "taken", "$args, $attributes", body, known)
    body = [f"$args, $attributes = {_given(mine, True)}", "if $tracing(): return $traced($args, $attributes)"]
    body = ["if $tracing() or $more or $unknown:", *(f"    {line}" for line in body)]
    body += ["    return $generic($args, $attributes)", *_unpacking(packed, _given(mine, False))]
    hit = _hit(op.parsed.parameters, mine, f"$generic(*{_given(mine, False)})")
    return HotPath(_made(op, "call", _signature(mine, True), [*body, *hit], known), taken, flat)


def _generic(around: Around, flat: Callable[..., Any]) -> HotPath:
    """Any schema and any way of flattening, at the price of two more Python calls."""

    def call(*args: Any, **attributes: Any) -> Any:
        return around.traced(args, attributes) if is_dynamo_compiling() else around.generic(args, attributes)

    return HotPath(call, around.generic, flat)


def _usable(name: str) -> bool:
    return not keyword.iskeyword(name)


def _names(around: Around) -> dict[str, Any]:
    """What the written functions reach for, without ``generated_code.OWN``."""
    return {
        "MISSING": MISSING,
        "given": given,
        "modes": dispatch_modes,
        "forward": forward_level,
        "is_grad_enabled": is_grad_enabled,
        "tracing": is_dynamo_compiling,
        "table": around.table,
        "forcing": around.watchers[0],
        "recorder": around.watchers[1],
        "slow": around.slow,
        "generic": around.generic,
        "traced": around.traced,
        "may_retry": around.may_retry,
        "same_zero": same_zero,
        **_BUILTINS,
    }


_BUILTINS: Mapping[str, Any] = {
    one.__name__: one
    for one in (type, len, int, float, str, Exception, AttributeError, TypeError, RuntimeError, ValueError)
}
"""By names of the text's own: a schema may have a parameter named ``type`` or ``len``."""


def given(
    names: tuple[str, ...], positional: int, values: tuple[Any, ...], more: tuple[Any, ...], unknown: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call again, from what its parameters were given."""
    # with more positional arguments than there are parameters, all parameters were given by position
    args = (*values[:positional], *more) if more else ()
    first = positional if more else 0
    # not "is": Dynamo of torch 2.11 compares no number that it takes for a symbol with an object
    pairs = zip(names[first:], values[first:], strict=True)
    named = {name: value for name, value in pairs if not isinstance(value, _Missing)}
    return args, {**named, **unknown}


def _signature(parameters: Sequence[Parameter], open_ended: bool) -> str:
    """``open_ended``: what is no parameter is taken too, for the slow path to refuse; that costs 0.04 µs."""
    shown = {parameter: f"{parameter.name}={_default(parameter)}" for parameter in parameters}
    positional = [text for parameter, text in shown.items() if not parameter.keyword_only]
    named = [text for parameter, text in shown.items() if parameter.keyword_only]
    star = ["*$more"] if open_ended else ["*"] if named else []
    return ", ".join([*positional, *star, *named, *(["**$unknown"] if open_ended else [])])


def _unpacking(packed: Packed, again: str = "") -> list[str]:
    """Lines that take the packed argument apart, or leave the call to the op's own flattening."""
    given = f"*{again}" if again else "$args, $attributes"
    return [
        f"if $type({packed.parameter}) is not $Packed: return $generic({given})",
        *(f"{name} = {packed.parameter}.{path}" for name, path in packed.parts.items()),
    ]


def _taking(parameters: Sequence[Parameter]) -> list[str]:
    """Lines that set the parameters from ``_args`` and ``_attributes``, or leave the call to the generic way."""
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


def _hit(parameters: Sequence[Parameter], nestable: Sequence[Parameter], otherwise: str) -> list[str]:
    """Lines that answer from the table, else return ``otherwise``. ``nestable``: who may be given a nested tensor."""
    entry = f"$check, ({_expected(parameters)}), $grad, $run, $hit, $resolved"
    same = _same(parameters)
    # torch's guard ends the process when it is given a nested tensor
    nested = " or ".join(_nested(parameter) for parameter in nestable if parameter.kind == "Tensor") or "True"
    names = [parameter.name for parameter in parameters]
    return [
        "if not $modes() and $forward._current_level < 0 and not $forcing.active and not $recorder.active:",
        "    $now = $table.now",
        f"    {entry} = $now.recent",
        "    try:",
        f"        if {nested}:",
        "            $same = False",
        f"        elif not ($same := {same}):",
        f"            for $entry in $now.shapes.get({[*names, '$MISSING'][0]}.shape, ()):",
        f"                {entry} = $entry",
        f"                if {same}:",
        "                    $now.recent = $entry",
        "                    $same = True",
        "                    break",
        # what is no tensor has neither attribute, and what torch.fx traces with raises ValueError when it is compared
        "    except ($AttributeError, $TypeError, $RuntimeError, $ValueError):",
        "        $same = False",
        "    if $same:",
        "        try:",
        f"            $outputs = $run({', '.join(names)})",
        "        except $Exception as $fault:",
        "            if not $may_retry($fault, $grad, $resolved): raise",
        "        else:",
        "            $hit()",
        "            return $outputs",
        f"return {otherwise}",
    ]


def _same(parameters: Sequence[Parameter]) -> str:
    """Whether the entry at hand answers."""
    tensors = ", ".join(parameter.name for parameter in parameters if parameter.kind == "Tensor")
    others = [_SAME[parameter.kind].format(parameter.name) for parameter in parameters if parameter.kind != "Tensor"]
    return " and ".join([f"$check({tensors})", *others, "($grad is None or $grad is $is_grad_enabled())"])


def _given(parameters: Sequence[Parameter], open_ended: bool) -> str:
    names = tuple(parameter.name for parameter in parameters)
    positional = sum(not parameter.keyword_only for parameter in parameters)
    values = "".join(f"{name}, " for name in names)
    return f"$given({names!r}, {positional}, ({values}), {'$more, $unknown' if open_ended else '(), {}'})"


def _expected(parameters: Sequence[Parameter]) -> str:
    return "".join(f"$was_{parameter.name}, " for parameter in parameters if parameter.kind != "Tensor")


def _nested(parameter: Parameter) -> str:
    nested = f"{parameter.name}.is_nested"
    return f"{parameter.name} is not None and {nested}" if parameter.optional else nested


_SAME: Mapping[str, str] = {
    "int": "({0} is $was_{0} or ($type({0}) is $int and {0} == $was_{0}))",
    "bool": "{0} is $was_{0}",
    "str": "({0} is $was_{0} or ($type({0}) is $str and {0} == $was_{0}))",
    "Scalar": (
        "({0} is $was_{0} or ($type({0}) is $type($was_{0}) and {0} == $was_{0}"
        " and ({0} or $same_zero({0}, $was_{0}))))"
    ),
    # 0.0 equals -0.0, but a kernel may have been compiled for one of them
    "float": "({0} is $was_{0} or ($type({0}) is $float and {0} == $was_{0} and ({0} or $same_zero({0}, $was_{0}))))",
}
"""When a value may take the place of the one that was resolved; most calls pass the very constant of a source line.

What was resolved for any value has a ``Free`` there, which equals each.
"""


def _made(op: Op, name: str, signature: str, body: Sequence[str], known: Mapping[str, Any]) -> Callable[..., Any]:
    """The function, as pickle and torch.compile are to see it."""
    parameters = op.parsed.parameters
    defaults = {f"default_{parameter.name}": parameter.default for parameter in parameters if not parameter.required}
    others = [*op.parsed.names, *([op.packed.parameter] if op.packed is not None else [])]
    # without a __name__ among them, by which torch.compile would look for these names in this module
    made = function(f"{OWN}{name}", signature, body, {**known, **defaults}, others)
    made.__qualname__ = made.__name__ = op.hook
    made.__module__ = _FOUND_IN
    made.__doc__ = op.schema
    return made
