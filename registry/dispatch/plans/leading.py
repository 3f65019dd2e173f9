"""The sizes of a call that vary together: the leading ones of its first tensor, whose product is the row count."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...problem import Arguments, TensorSpec
from ...symbolic import Interval


class Part:
    """Some of several leading sizes, times a number: 5 of a [5, 7, 64] tensor. Only all of them are a row count.

    Arithmetic that ends with the product of all is followed; whatever else depends on one gives the interval up.
    """

    __slots__ = ("_among", "_factor", "_interval", "_number", "_which")

    def __init__(self, interval: Interval, among: Sequence[int], which: frozenset[int], factor: int = 1) -> None:
        self._interval = interval
        self._among = tuple(among)
        self._which = which
        self._factor = factor
        self._number = math.prod(among[place] for place in which) * factor

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def __mul__(self, other: Any) -> Any:
        if type(other) is Part and not self._which & other._which:
            which, factor = self._which | other._which, self._factor * other._factor
            if len(which) == len(self._among):
                return self._interval.size() * factor
            return Part(self._interval, self._among, which, factor)
        if type(other) is int and other > 0:
            return Part(self._interval, self._among, self._which, self._factor * other)
        return self._number * (other._number if type(other) is Part else other) if self._give_up("times") else 0

    __rmul__ = __mul__

    def __eq__(self, other: Any) -> bool:
        if type(other) is Part and (self._which, self._factor) == (other._which, other._factor):
            return True
        if type(other) is int and other < self._factor:
            return False
        return self._give_up("compared") and self._number == (other._number if type(other) is Part else other)

    def __lt__(self, other: Any) -> bool:
        if type(other) is int and other <= self._factor:
            return False
        return self._give_up("compared") and self._number < other

    def __gt__(self, other: Any) -> bool:
        if type(other) is int and other < self._factor:
            return True
        return self._give_up("compared") and self._number > other

    def __le__(self, other: Any) -> bool:
        return not self > other

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def __bool__(self) -> bool:
        return True

    def __hash__(self) -> int:
        return hash(self.__index__())

    def __index__(self) -> int:
        self._give_up("used")
        return self._number

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def __str__(self) -> str:
        return str(self._number if self._interval.text_is_free else self.__index__())

    __repr__ = __str__

    def __format__(self, form: str) -> str:
        return format(self._number if self._interval.text_is_free else self.__index__(), form)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__index__(), name)

    def _give_up(self, use: str) -> bool:
        self._interval.forget(f"one of several leading sizes is {use}, not only their product")
        return True


def _reached(name: str) -> Any:
    def method(self: Part, *others: Any) -> Any:
        numbers = [other.__index__() if type(other) is Part else other for other in others]
        return getattr(self.__index__(), name)(*numbers)

    return method


for _sign in ("add", "sub", "floordiv", "truediv", "mod", "lshift", "rshift", "pow", "and", "or", "xor", "divmod"):
    for _name in (f"__{_sign}__", f"__r{_sign}__"):
        setattr(Part, _name, _reached(_name))
for _name in ("__neg__", "__pos__", "__abs__", "__invert__", "__round__", "__ceil__", "__floor__", "__trunc__"):
    setattr(Part, _name, _reached(_name))


@dataclass(frozen=True)
class Leading:
    """Which tensors of a call vary, by schema name, and in how many leading dimensions: all but the last, or the only.

    They are row-major and have equal leading sizes.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def rows(self) -> int:
        """The product of the sizes."""
        return math.prod(self.sizes)

    @property
    def count(self) -> int:
        """How many dimensions vary."""
        return len(self.sizes)

    def symbols(self, interval: Interval) -> tuple[Any, ...]:
        """The sizes as what stands for many."""
        if self.count == 1:
            return (interval.size(),)
        return tuple(Part(interval, self.sizes, frozenset({place})) for place in range(self.count))

    def arguments(self, arguments: Arguments, sizes: Sequence[Any]) -> Arguments:
        """The arguments of a call with other leading sizes."""
        values: Mapping[str, Any] = {
            name: self._resized(value, sizes) if name in self.names and isinstance(value, TensorSpec) else value
            for name, value in arguments.values.items()
        }
        return Arguments(arguments.op, values)

    def _resized(self, spec: TensorSpec, sizes: Sequence[Any]) -> TensorSpec:
        return row_major(spec, (*sizes, *spec.shape[self.count :]))


def row_major(spec: TensorSpec, shape: tuple[Any, ...]) -> TensorSpec:
    """``spec`` with another shape, row-major; sizes are at least 1."""
    strides: list[Any] = []
    step: Any = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return replace(spec, shape=shape, strides=tuple(reversed(strides)))


def leadings(arguments: Arguments, first: str) -> list[Leading]:
    """Who may vary in a call whose first given tensor is ``first``: all of its leading sizes and rank, or it alone.

    Of two tensors whose sizes are equal by chance the op's problem tells, by asking for their numbers.
    """
    spec = arguments.tensor(first)
    if not spec.shape or 0 in spec.shape:
        return []
    count = max(len(spec.shape) - 1, 1)
    sizes = spec.shape[:count]
    alike = tuple(
        name
        for name, other in arguments.tensors.items()
        if len(other.shape) == len(spec.shape) and other.shape[:count] == sizes
    )
    names = [alike, (first,)] if alike != (first,) else [alike]
    return [Leading(each, sizes) for each in names if all(_row_major(arguments.tensor(name)) for name in each)]


def _row_major(spec: TensorSpec) -> bool:
    return spec.is_contiguous
