"""The text of a hit: the checks of a table entry against a call, and the run of its plan.

A value must equal the resolved one as a kernel sees it; mostly it is the identical constant of a source line. Where any
value of a kind will do, the entry has a ``Free``, which equals all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from torch import is_grad_enabled

from ...arguments.schema import Parameter
from ..torch_side.torch_private import dispatch_modes, forward_level, profiler
from .call_parts import GIVEN_AS_LIST, key_parameter
from .free_attributes import ONLY_INT, Free, same_zero

_NO_HIT = (AttributeError, TypeError, RuntimeError, ValueError)
"""Faults of checks on arguments that are no tensors, which lack attributes, or that torch.fx traces with."""

HIT_NAMES: Mapping[str, Any] = {
    "modes": dispatch_modes,
    "forward": forward_level,
    "is_grad_enabled": is_grad_enabled,
    "profiler": profiler,
    "same_zero": same_zero,
    "Free": Free,
    "given_as_list": GIVEN_AS_LIST,
    "nested": attrgetter("is_nested"),
    "only_int": ONLY_INT,
    **{one.__name__: one for one in (type, len, map, tuple, int, float, str, Exception, *_NO_HIT)},
}
"""Names that the text uses with the prefix ``OWN``: a schema may have a parameter named ``type`` or ``len``."""


def hit_lines(
    parameters: Sequence[Parameter], nestable: Sequence[Parameter], otherwise: str, *, ints_first: bool = False
) -> list[str]:
    """Lines that answer a call from the table, or as another size of a known call, else return ``otherwise``.

    ``nestable``: parameters whose argument may be a nested tensor. ``ints_first``: entries of a shape mostly differ in
    ints, rather than in tensors.
    """
    entry = f"$check, ({_expected(parameters)}), $grad, $run, $hit, $resolved"
    same, near = _same(parameters), _near(parameters) if ints_first else ""
    lists = [parameter.name for parameter in parameters if parameter.kind.endswith("[]")]
    # torch's guard ends the process when it is given a nested tensor
    strange = [f"$type({name}) is not $tuple" for name in lists]
    strange += [_nested(parameter) for parameter in nestable if parameter.holds_tensors]
    names = [parameter.name for parameter in parameters]
    return [
        "if not $modes() and $forward._current_level < 0 and not $forcing.active and not $recorder.active:",
        "    $now = $table.now",
        f"    {entry} = $now.recent",
        # a tuple, so that another thread's change of a list does not affect this call
        *(f"    if $type({name}) in $given_as_list: {name} = $tuple({name})" for name in lists),
        "    try:",
        f"        if {' or '.join(strange) or 'True'}:",
        "            $same = False",
        f"        elif not ($same := {same}):",
        f"            for $entry in $now.shapes.get({_key(parameters)}, ()):",
        f"                {entry} = $entry",
        f"                if {near}{same}:",
        "                    $now.recent = $entry",
        "                    $same = True",
        "                    break",
        f"    except ({', '.join(f'${fault.__name__}' for fault in _NO_HIT)}):",
        "        $same = False",
        "    if $same:",
        "        try:",
        f"            $outputs = $run({', '.join(names)}) if not $profiler._is_profiler_enabled"
        f" else $profiled($resolved, {', '.join(['$run', *names])})",
        "        except $Exception as $fault:",
        f"            if not $may_retry($fault, $resolved, ({''.join(f'{name}, ' for name in names)})): raise",
        "        else:",
        "            $hit()",
        "            return $outputs",
        f"    elif ($answered := $another_size(({''.join(f'{name}, ' for name in names)}))) is not None:",
        "        return $answered[0]",
        f"return {otherwise}",
    ]


def _key(parameters: Sequence[Parameter]) -> str:
    key = key_parameter(parameters)
    if key is None:
        return "None"
    if key.kind == "Tensor[]":
        return f"{key.name}[0].shape if {key.name} else None"
    return f"None if {key.name} is None else {key.name}.shape" if key.optional else f"{key.name}.shape"


def _same(parameters: Sequence[Parameter]) -> str:
    tensors = ", ".join(_STAR[one.kind] + one.name for one in parameters if one.holds_tensors)
    # a guard of another number of tensors raises
    lengths = [f"$len({one.name}) == $was_{one.name}" for one in parameters if one.kind == "Tensor[]"]
    others = [_SAME[one.kind].format(one.name) for one in parameters if not one.holds_tensors]
    return " and ".join([*lengths, f"$check({tensors})", *others, "($grad is None or $grad is $is_grad_enabled())"])


def _near(parameters: Sequence[Parameter]) -> str:
    """Conditions on ints before the guard, which takes longer than these, but a placeholder's comparison longer."""
    ints = [one.name for one in parameters if one.kind == "int" and not one.optional]
    other = "$type({0}) is $int and $type($was_{0}) is $int and {0} != $was_{0}"
    return "".join(f"({name} is $was_{name} or not ({other.format(name)})) and " for name in ints)


def _expected(parameters: Sequence[Parameter]) -> str:
    return "".join(f"$was_{parameter.name}, " for parameter in parameters if parameter.kind != "Tensor")


def _nested(parameter: Parameter) -> str:
    if parameter.kind == "Tensor[]":
        return f"True in $map($nested, {parameter.name})"
    nested = f"{parameter.name}.is_nested"
    return f"{parameter.name} is not None and {nested}" if parameter.optional else nested


_STAR: Mapping[str, str] = {"Tensor": "", "Tensor[]": "*"}

_SAME: Mapping[str, str] = {
    "int": "({0} is $was_{0} or ($type({0}) is $int and {0} == $was_{0}))",
    "bool": "{0} is $was_{0}",
    "str": "({0} is $was_{0} or ($type({0}) is $str and {0} == $was_{0}))",
    "int[]": (
        "({0} is $was_{0} or ({0} == $was_{0}"
        " and ($type($was_{0}) is $Free or $only_int.issuperset($map($type, {0})))))"
    ),
    "Scalar": (
        "({0} is $was_{0} or ({0} == $was_{0} and ($type($was_{0}) is $Free or $type({0}) is $type($was_{0}))"
        " and ({0} or $same_zero({0}, $was_{0}))))"
    ),
    # 0.0 equals -0.0, but a kernel may have been compiled for one of them
    "float": "({0} is $was_{0} or ($type({0}) is $float and {0} == $was_{0} and ({0} or $same_zero({0}, $was_{0}))))",
}
