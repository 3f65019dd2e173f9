"""Answers of functions of a problem, kept by the dimensions that the functions looked at.

A function that finds the dimensions it looked at unchanged gives its former answer: another size is no question to it
where it looks at no size. It is given plain numbers and texts, whatever it does with them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Generic, TypeVar

from ...arguments.specs import Value
from ...arguments.traits import OrdinaryTraits
from ...problem import Problem

_MOST_ANSWERS = 1024

_Answer = TypeVar("_Answer")


class _Watched(Mapping[str, Value]):
    """Dimensions; ``read`` holds the names that were looked at."""

    def __init__(self, dims: Mapping[str, Value]) -> None:
        self._dims = dims
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Value:
        self.read.add(name)
        return self._dims[name]

    def __iter__(self) -> Iterator[str]:
        self.read.update(self._dims)
        return iter(self._dims)

    def __len__(self) -> int:
        self.read.update(self._dims)
        return len(self._dims)


class Remembered(Generic[_Answer]):
    """``ask(problem)``, not asked again for a problem that is the same in all that was looked at so far.

    Problems are those of one family of calls: beside their dimensions nothing differs but what ``Traits.arguments``
    holds, and the answer of a function that takes these is not kept.
    """

    def __init__(self, ask: Callable[[Problem], _Answer]) -> None:
        self._ask = ask
        self._known: tuple[tuple[str, ...], dict[Hashable, _Answer]] | None = (), {}

    def of(self, problem: Problem) -> _Answer:
        """The answer for a problem. Raises what ``ask`` raises."""
        known, traits = self._known, problem.traits
        if known is None or type(traits) is not OrdinaryTraits:
            return self._ask(problem)
        names, answers = known
        key = _key(problem.dims, names)
        if key in answers:
            return answers[key]
        dims, taken = _Watched(problem.dims), traits.taken
        answer = self._ask(problem.watched(dims))
        if traits.taken != taken:
            self._known = None
        elif dims.read.issubset(names):
            if len(answers) >= _MOST_ANSWERS:
                answers.clear()
            answers[key] = answer
        else:
            names = tuple(dims.read.union(names))
            self._known = names, {_key(problem.dims, names): answer}
        return answer


def _key(dims: Mapping[str, Value], names: tuple[str, ...]) -> Hashable:
    values = [dims.get(name) for name in names]
    # 1, 1.0 and True are equal
    return *values, *map(type, values)
