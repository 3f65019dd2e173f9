"""One plan for every row count where that is sound: what one miss tells about calls with other leading sizes.

After a call was resolved, its choice and its plan are asked again with sizes that stand for many (``symbolic``). What
comes out is an interval of row counts in which resolution would choose the same candidate and its launches are those of
one function of the row count, or a reason why there is none.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import torch

from ...contract import Op
from ...device import Device
from ...problem import Arguments
from ...symbolic import MOST_ROWS
from ..hit.guards import Condition, maker_of
from ..plans.leading import Leading, leadings
from ..plans.sized_plan import Sized, sized, sized_call
from ..torch_side.torch_private import Check, rows_guard
from .candidates import Plans, Resolved, place_of
from .choice_range import keep_choice, same_choice
from .resolution import Choice, Situation, choices

_LOG = logging.getLogger(__name__)

MOST_FAILURES = 8
"""Of one candidate's calls that differ in leading sizes only. A few row counts stand alone, e.g. 1 where 2 is tuned;
more failures than that have a reason in the implementation, which comes again."""

MOST_FAILED = 4096
"""Kinds of calls whose failures are counted, per op: all are tried again when there are more."""

_LONGEST_BOUND = 40
"""Characters of an expression that a person still reads."""


def _never(*_tensors: Any) -> bool:
    return False


@dataclass(frozen=True)
class Ranged(Resolved):
    """What answers calls of ``lo`` to ``hi`` rows; ``check_rows`` takes the values of the schema's Tensor parameters.

    ``bound`` tells what limits the interval.
    """

    lo: int = 0
    hi: int = 0
    bound: str = ""
    check_rows: Check = _never


class Ranges:
    """Makes ranges for one op, and remembers where that was in vain."""

    def __init__(self, op: Op, plans: Plans) -> None:
        self._op = op
        self._plans = plans
        self._failures: Counter[Hashable] = Counter()
        self._sized = not (op.parsed.mutates or op.parsed.has_lists)
        self._parameters = [parameter.name for parameter in op.parsed.parameters if parameter.kind == "Tensor"]

    def clear(self) -> None:
        """Forget failures."""
        self._failures = Counter()

    def told(self, resolved: Resolved, values: tuple[Any, ...]) -> Resolved:
        """For explain: an answer to many row counts as one to ``values``, which it answers too."""
        if not isinstance(resolved, Ranged):
            return resolved
        arguments = self._op.arguments(values)
        problem = self._op.pose(arguments)
        situation = self._plans.situation(problem, Device.of(next(iter(arguments.tensors.values())).device))
        choice = next(choices(situation, None, []))
        told = _with_rows(choice, resolved.lo, resolved.hi, resolved.bound)
        return replace(resolved, choice=told, problem=problem, place=place_of(arguments))

    def widened(self, resolved: Resolved, ranged: Any) -> Resolved:
        """``resolved`` telling the interval that ``ranged`` serves, where both are of one candidate."""
        one, other = resolved.choice.candidate, ranged.choice.candidate
        if not isinstance(ranged, Ranged) or one is None or other is None or one.key != other.key:
            return resolved
        return replace(resolved, choice=_with_rows(resolved.choice, ranged.lo, ranged.hi, ranged.bound))

    def of(self, values: tuple[Any, ...], resolved: Resolved) -> Ranged | None:
        """What ``resolved``, an answer to ``values`` that nobody forced, says about other row counts."""
        if resolved.plan is None or resolved.makeshift or resolved.problem is None or not self._sized:
            return None
        if resolved.choice.step not in {"nearest", "default"}:
            return None
        arguments = self._op.arguments(values)
        first = next(iter(arguments.tensors))
        aligned, rank = resolved.problem.traits["aligned"], len(arguments.tensor(first).shape)
        # another weight of the same depth has row counts of its own that stand alone
        fixed = tuple((name, size) for name, size in resolved.problem.dims.items() if name not in self._op.dynamic)
        key = (resolved.plan.candidate.key, aligned, rank, fixed)
        if self._failures[key] >= MOST_FAILURES:
            return None
        reason = "its first tensor has no leading sizes"
        for leading in leadings(arguments, first):
            found = self._tried(values, arguments, leading, resolved)
            if isinstance(found, Ranged):
                return found
            reason = found
        if len(self._failures) >= MOST_FAILED:
            self._failures = Counter()
        self._failures[key] += 1
        _LOG.debug("%s: a plan for %s serves no other row counts: %s", self._op.name, resolved.problem, reason)
        return None

    def _tried(
        self, values: tuple[Any, ...], arguments: Arguments, leading: Leading, resolved: Resolved
    ) -> Ranged | str:
        try:
            return self._ranged(values, arguments, leading, resolved)
        except Exception as fault:  # an implementation may do with a size what only a number can
            return f"{type(fault).__name__}: {fault}"

    def _ranged(
        self, values: tuple[Any, ...], arguments: Arguments, leading: Leading, resolved: Resolved
    ) -> Ranged | str:
        plan, problem = resolved.plan, resolved.problem
        assert plan is not None
        assert problem is not None
        device = Device.of(arguments.tensor(leading.names[0]).device)
        call = sized(self._op, arguments, leading)
        situation = self._plans.situation(problem, device)
        if reason := keep_choice(call, situation, resolved.choice) or _too_few(call):
            return reason
        run = sized_call(call, plan, device)
        if isinstance(run, str):
            return run
        if reason := call.interval.unsound or _too_few(call) or _contradiction(call, situation, resolved):
            return reason
        interval = call.interval
        check = self._check(values, call, resolved.conditions)
        plain = {field.name: getattr(resolved, field.name) for field in fields(Resolved)}
        return Ranged(
            **{**plain, "run": run, "choice": _with_rows(resolved.choice, interval.lo, interval.hi, interval.reason)},
            lo=interval.lo,
            hi=interval.hi,
            bound=interval.reason,
            check_rows=check,
        )

    def _check(self, values: tuple[Any, ...], call: Sized, conditions: tuple[Condition, ...]) -> Check:
        given = dict(zip(self._op.parsed.names, values, strict=True))
        shape = call.actual.tensor(call.leading.names[0]).shape
        tensors = {name: given[name] for name in self._parameters}
        present = tuple(name for name, value in tensors.items() if isinstance(value, torch.Tensor))
        free = tuple(call.leading.count if name in call.leading.names else 0 for name in present)
        guards = [rows_guard((tensors[name],), (count,)) for name, count in zip(present, free, strict=True)]
        once = len({id(tensors[name]) for name in present}) == len(present)
        if once:
            guards = [rows_guard([tensors[name] for name in present], free)]
        make = _maker(
            tuple(self._parameters.index(name) for name in present),
            tuple(self._parameters.index(name) for name in call.leading.names),
            (len(self._parameters), len(shape), call.leading.count, once, len(conditions)),
        )
        check: Check = make(call.interval.lo, call.interval.hi, shape[-1], *guards, *conditions)
        return check


def _with_rows(choice: Choice, lo: int, hi: int, bound: str) -> Choice:
    limit = f" ({bound})" if 0 < len(bound) <= _LONGEST_BOUND else ""
    rows = f"{lo} rows or more" if hi == MOST_ROWS else f"{lo} to {hi} rows"
    return replace(choice, reason=f"{choice.reason}; one plan serves {rows}{limit}")


def _too_few(call: Sized) -> str:
    return f"it holds for this row count only ({call.interval.reason})" if len(call.interval) < 2 else ""


def _contradiction(call: Sized, situation: Situation, resolved: Resolved) -> str:
    """What plain resolution says at the interval's ends and beside the call: code may look at a size in any way."""
    interval, leading = call.interval, call.leading
    wanted = {interval.lo, interval.hi, interval.rows - 1, interval.rows + 1}
    for rows in sorted(number for number in wanted if number in interval and number != interval.rows):
        sizes = (*[1] * (leading.count - 1), rows)
        problem = call.op.pose(leading.arguments(call.actual, sizes))
        if problem != call.at(rows) or repr(problem.traits) != repr(call.problem.traits):
            return f"{rows} rows are the problem {problem}, expected {call.at(rows)}"
        if not same_choice(call, situation, resolved.choice, rows):
            return f"another choice is made for {rows} rows, though nothing says so"
    return ""


@lru_cache(maxsize=256)
def _maker(
    present: tuple[int, ...], varying: tuple[int, ...], form: tuple[int, int, int, bool, int]
) -> Callable[..., Check]:
    """``make(lo, hi, last, *guards, *conditions)`` of one flat function, as in ``guards``.

    ``form``: parameters, rank and leading sizes of the first tensor, whether no tensor is given twice, conditions.
    """
    parameters, rank, count, once, conditions = form
    names = [f"t{place}" for place in range(parameters)]
    first = names[varying[0]]
    given = ", ".join(names[place] for place in present)
    guards = [f"guard{place}" for place in range(1 if once else len(present))]
    others = [f"condition{place}" for place in range(conditions)]
    rows = " * ".join(f"shape[{axis}]" for axis in range(count))
    demands = [f"{name} is None" for place, name in enumerate(names) if place not in present]
    demands += [f"len(shape) == {rank}", *(["shape[-1] == last"] if rank > count else []), f"lo <= {rows} <= hi"]
    demands += [f"guard0({given})"] if once else [f"{g}({names[p]})" for g, p in zip(guards, present, strict=True)]
    demands += [f"{names[place]}.shape[:{count}] == shape[:{count}]" for place in varying[1:]]
    if count > 1:
        demands += [f"{names[place]}.is_contiguous()" for place in varying]
    demands += [f"{other}({given})" for other in others]
    source = (
        f"def make({', '.join(['lo', 'hi', 'last', *guards, *others])}):\n"
        f"    def match({', '.join(names)}):\n"
        f"        if {first} is None:\n"
        "            return False\n"
        f"        shape = {first}.shape\n"
        f"        return {' and '.join(demands)}\n"
        "    return match\n"
    )
    return maker_of(source)
