"""Checks of an op's fields that need no problem: their types, and the parameters of the author's functions."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from ..author_code import at
from ..errors import InvalidDefinitionError, UnknownNameError
from .fake import RowMajor
from .gradient import Backward
from .tolerance import Tolerance

if TYPE_CHECKING:
    from .op import Op

_ASKED: Mapping[str, tuple[str, ...]] = {
    "problem": ("arguments",),
    "inputs": ("problem", "kind", "generator"),
    "floor": ("problem",),
    "check": ("problem",),
    "check_data": ("values",),
    "view": ("arguments",),
    "forms": ("given",),
}
"""The functions of an op that the host calls, with what each is given."""
_OPTIONAL = frozenset({"check", "check_data", "view", "forms"})
_IMPLEMENTATION = re.compile(r"[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)+\Z")


def check_fields(op: Op) -> None:
    """Raise InvalidDefinitionError, with the author's line where it is known, for fields that no call could use."""
    for told, hint in _faults(op):
        raise InvalidDefinitionError(f"op {op.name!r}: {told}", hint=hint)


def uncallable(function: Any, given: Collection[str]) -> str:
    """Why ``function`` cannot be called with so many arguments by position, with its line; "" if it can.

    "" also for a function whose parameters are not known, such as one in C.
    """
    if type(function) is FunctionType and _clearly_takes(function.__code__, len(given)):
        return ""
    if not callable(function):
        return f"{function!r:.80} is no function"
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(*given)
    except TypeError as fault:
        name = getattr(function, "__name__", type(function).__name__)
        return f"{name}{signature} cannot be called with ({', '.join(given)}): {fault}{at(function)}"
    return ""


def _clearly_takes(code: CodeType, count: int) -> bool:
    """True for code of exactly so many parameters, all by position: a signature takes a hundred times as long."""
    return code.co_argcount == count and not code.co_kwonlyargcount


def _faults(op: Op) -> Iterator[tuple[str, str]]:
    if type(op.version) is not int:
        yield f"its version is {op.version!r:.80}", "expected an int, which grows when the semantics change"
    if isinstance(op.kinds, str):  # it would be read letter by letter
        yield f"its kinds are {op.kinds!r}", f"expected a tuple of names, ({op.kinds!r},)"
    elif twice := [kind for kind, count in Counter(op.kinds).items() if count > 1]:
        yield f"its kinds have {twice[0]!r} twice", "name each kind of inputs once"
    baseline: object = op.baseline
    if not isinstance(baseline, str) or not _IMPLEMENTATION.match(baseline):
        yield f"its baseline is {baseline!r:.80}", "expected the name of an implementation, e.g. 'torch.native'"
    if isinstance(op.examples, Mapping):
        yield "its examples are one mapping", "expected a tuple of mappings, each of dimensions: ({...},)"
    if op.backward is not None and not isinstance(op.backward, Backward):
        yield f"its backward is {op.backward!r:.80}", "expected registry.Backward(op=..., saved=(...))"
    else:
        yield from _backward_faults(op.backward)
    yield from _function_faults(op)
    yield from _alike_faults(op)
    yield from _added_faults(op)
    for name, tolerance in {"": op.tolerance, **op.tolerances}.items():
        yield from _tolerance_faults(f"its tolerance{name and f' of {name}'}", tolerance)


def _backward_faults(backward: Backward | None) -> Iterator[tuple[str, str]]:
    """Names in a ``Backward`` that are one text, which would be read letter by letter."""
    if backward is None:
        return
    for told, names in (("saved", backward.saved), ("differentiable", backward.differentiable)):
        given: object = names
        if isinstance(given, str):
            yield f"{told} in its backward is {given!r} ({backward.place})", f"expected a tuple of names, ({given!r},)"


def _function_faults(op: Op) -> Iterator[tuple[str, str]]:
    for name, given in _ASKED.items():
        function = getattr(op, name)
        if (function is not None or name not in _OPTIONAL) and (why := uncallable(function, given)):
            yield f"{name}: {why}", f"it takes ({', '.join(given)})"
    if op.flatten is not None and not callable(op.flatten):
        yield f"flatten: {op.flatten!r:.80} is no function", "it takes a user's call, flatten(*args, **attributes)"
    if op.fake is not None and not isinstance(op.fake, RowMajor) and (why := uncallable(op.fake, op.parsed.names)):
        yield f"fake: {why}", f"it takes the schema's arguments in order: ({', '.join(op.parsed.names)})"
    given = ("problem", "values", "results", "references")
    for name, compare in op.compare.items():
        if why := uncallable(compare, given):
            yield f"compare: {name}: {why}", f"it takes ({', '.join(given)}), and yields every fault in words"


def _alike_faults(op: Op) -> Iterator[tuple[str, str]]:
    tensors = [parameter.name for parameter in op.parsed.parameters if parameter.holds_tensors]
    for name in (name for pair in op.alike.items() for name in pair if name not in tensors):
        yield f"alike: {UnknownNameError('tensor', name, tensors).message}", f"its tensors are {', '.join(tensors)}"


def _added_faults(op: Op) -> Iterator[tuple[str, str]]:
    for name, values in op.added.items():
        among = op.choices.get(name, ())
        if not isinstance(values, tuple) or not set(values) < set(among):
            told = f"its choices of {name} are {', '.join(map(str, among)) or 'none'}"
            yield f"added: {name} is {values!r:.80}, but {told}", "expected a tuple of some of these, not of all"


def _tolerance_faults(told: str, tolerance: Tolerance) -> Iterator[tuple[str, str]]:
    if not isinstance(tolerance, Tolerance):
        yield f"{told} is {tolerance!r:.80}", "expected a registry.Tolerance"
        return
    for name in ("rtol", "atol"):
        given: object = getattr(tolerance, name)
        if not isinstance(given, Mapping) or not all(isinstance(dtype, str) for dtype in given):
            yield f"{told} has {name}={given!r:.80}", f'expected a mapping of dtype names, {name}={{"float32": 1e-6}}'
    given = ("problem", "reference", "values")
    if (why := uncallable(tolerance.scale, given[:2])) and uncallable(tolerance.scale, given):
        yield f"{told}: scale: {why}", "it takes (problem, reference), or (problem, reference, values)"
