"""Answers of functions of a problem, remembered by the dimensions that the functions read.

A function is not called again while the dimensions that it reads are unchanged, e.g. for another size if it reads no
size. It always gets plain numbers and texts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from ...arguments.specs import WatchedValues
from ...arguments.traits import FamilyTraits
from ...problem import Problem, getter

_MOST_ANSWERS = 1024
_UNASKED = object()

_Answer = TypeVar("_Answer")


class _AnswersByDimensions(Generic[_Answer]):
    """Answers of a function by the values of the dimensions ``names``."""

    __slots__ = ("answers", "names", "values")

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        self.values = getter(sorted(names))
        self.answers: dict[Hashable, _Answer | object] = {}


class Remembered(Generic[_Answer]):
    """``ask(problem)``, called once for all problems that are equal in the dimensions that it reads.

    The problems must be of one family of calls, which differ only in dimensions and ``Traits.arguments``. Answers are
    not kept if the function reads ``Traits.arguments``, or all ``dynamic`` dimensions, since a new size changes one.
    """

    def __init__(self, ask: Callable[[Problem], _Answer], dynamic: frozenset[str]) -> None:
        self._ask = ask
        self._dynamic = dynamic
        self._known: _AnswersByDimensions[_Answer] | None = _AnswersByDimensions(frozenset())
        self.is_kept = True
        """False once the function was seen to read what makes each answer a new one: then all are asked for anew."""

    def depends_on(self, name: str) -> bool:
        """False if no answer so far depends on a dimension."""
        return self._known is None or name in self._known.names

    def of(self, problem: Problem) -> _Answer:
        """The answer for a problem. Raises any exception of ``ask``."""
        known, traits = self._known, problem.traits
        if known is None or not isinstance(traits, FamilyTraits):
            return self._ask(problem)
        # with types, since 1, 1.0 and True are equal
        key = (*(values := known.values(problem.dims)), *map(type, values)) if known.names else ()
        answer = known.answers.get(key, _UNASKED)
        return self._asked(problem, traits, known) if answer is _UNASKED else answer  # type: ignore[return-value]

    def _asked(self, problem: Problem, traits: FamilyTraits, known: _AnswersByDimensions[_Answer]) -> _Answer:
        dims, taken = WatchedValues(problem.dims), traits.taken
        answer = self._ask(problem.watched(dims))
        if traits.taken != taken or dims.read >= self._dynamic:
            self._known, self.is_kept = None, False
            return answer
        if not dims.read <= known.names or len(known.answers) >= _MOST_ANSWERS:
            self._known = known = _AnswersByDimensions(known.names | dims.read)
        values = known.values(problem.dims)
        known.answers[(*values, *map(type, values))] = answer
        return answer
