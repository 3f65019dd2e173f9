"""Answers of functions of a problem, kept by the dimensions that the functions looked at.

A function that finds the dimensions it looked at unchanged gives its former answer: another size is no question to it
where it looks at no size. It is given plain numbers and texts, whatever it does with them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from ...arguments.specs import WatchedValues
from ...arguments.traits import OrdinaryTraits
from ...problem import Problem, getter

_MOST_ANSWERS = 1024

_Answer = TypeVar("_Answer")


class _AnswersByDimensions(Generic[_Answer]):
    """Answers by the values of some dimensions."""

    __slots__ = ("answers", "names", "values")

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        self.values = getter(sorted(names))
        self.answers: dict[Hashable, _Answer] = {}


class Remembered(Generic[_Answer]):
    """``ask(problem)``, not asked again for a problem that is the same in all that was looked at so far.

    Problems are those of one family of calls: beside their dimensions nothing differs but what ``Traits.arguments``
    holds, and the answer of a function that takes these is not kept. Nor is that of a function that looks at every one
    of the ``dynamic`` dimensions: a new size differs in one of them.
    """

    def __init__(self, ask: Callable[[Problem], _Answer], dynamic: frozenset[str]) -> None:
        self._ask = ask
        self._dynamic = dynamic
        self._known: _AnswersByDimensions[_Answer] | None = _AnswersByDimensions(frozenset())

    def of(self, problem: Problem) -> _Answer:
        """The answer for a problem. Raises what ``ask`` raises."""
        known = self._known
        if known is None or type(problem.traits) is not OrdinaryTraits:
            return self._ask(problem)
        values = known.values(problem.dims) if known.names else ()
        # 1, 1.0 and True are equal
        key = *values, *map(type, values)
        return known.answers[key] if key in known.answers else self._asked(problem, problem.traits, known)

    def _asked(self, problem: Problem, traits: OrdinaryTraits, known: _AnswersByDimensions[_Answer]) -> _Answer:
        dims, taken = WatchedValues(problem.dims), traits.taken
        answer = self._ask(problem.watched(dims))
        if traits.taken != taken or dims.read >= self._dynamic:
            self._known = None
            return answer
        if not dims.read <= known.names or len(known.answers) >= _MOST_ANSWERS:
            self._known = known = _AnswersByDimensions(known.names | dims.read)
        values = known.values(problem.dims)
        known.answers[(*values, *map(type, values))] = answer
        return answer
