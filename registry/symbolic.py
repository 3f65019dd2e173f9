"""Sizes that stand for every row count of an interval: what code asks of them decides how far the interval reaches.

Concolic evaluation: a ``Symbolic`` carries the number of one call and the expression that it came from. Arithmetic
makes new expressions, a comparison answers for the call and narrows the interval to the row counts for which the answer
is the same. What looks at the number itself (as an index, a hash, a float, text) narrows it to those with that number.

It is no subclass of int on purpose: C code (``math.gcd``, ``range``, ``json``) reads the number of a subclass without
asking, and must go through ``__index__`` for anything else.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

MOST_ROWS = 2**31 - 1
"""No interval reaches further: no tensor in memory has as many rows."""

_MOST_SHIFT = 64
_Number = int | float
_At = Callable[[int], Any]


class Interval:
    """The row counts ``lo`` to ``hi``, ``rows`` among them, for which all that was asked has the answer given.

    ``reason`` tells what narrowed it last. ``unsound``, when not empty, tells that something was asked whose answer
    does not depend on the row count alone.
    """

    def __init__(self, rows: int, hi: int = MOST_ROWS) -> None:
        self.rows = rows
        self.lo = 1
        self.hi = hi
        self.reason = ""
        self.unsound = ""
        self.text_is_free = False
        self._kept: set[tuple[str, str, str]] = set()

    def __contains__(self, rows: int) -> bool:
        return self.lo <= rows <= self.hi

    def __len__(self) -> int:
        return self.hi - self.lo + 1

    @contextmanager
    def free_text(self) -> Iterator[None]:
        """Let text be made of sizes without narrowing: what a person reads may differ."""
        before, self.text_is_free = self.text_is_free, True
        try:
            yield
        finally:
            self.text_is_free = before

    def size(self) -> Symbolic:
        """The row count itself."""
        return Symbolic(self, self.rows, _same, "rows", 1, (1, 0))

    def keep(self, sure: Callable[[int, int], bool], reason: str) -> None:
        """Narrow to the row counts up to which ``sure(a, b)`` holds: that nothing changes from ``a`` to ``b``."""
        lo, hi = self.lo, self.hi
        if not sure(self.rows, self.hi):
            self.hi = _last(self.rows, self.hi, lambda rows: sure(self.rows, rows))
        if not sure(self.lo, self.rows):
            self.lo = -_last(-self.rows, -self.lo, lambda rows: sure(-rows, self.rows))
        if (lo, hi) != (self.lo, self.hi):
            self.reason = reason

    def compare(self, one: Any, other: Any, relation: str, reason: str) -> None:
        """Narrow to where ``one relation other`` holds, as it does at ``rows``."""
        known = (_text(one), relation, _text(other))
        if known not in self._kept:
            self._kept.add(known)
            sure = _SURE[relation]
            self.keep(lambda lo, hi: sure(*_bounds(one, lo, hi), *_bounds(other, lo, hi)), reason)

    def forget(self, reason: str) -> None:
        """Give up: nothing but this very call is sure."""
        self.unsound = self.unsound or reason


def _last(inside: int, outside: int, holds: Callable[[int], bool]) -> int:
    """The last number from ``inside``, where it holds, before ``outside``, where it does not."""
    while outside - inside > 1:
        middle = (inside + outside) // 2
        if holds(middle):
            inside = middle
        else:
            outside = middle
    return inside


def _same(rows: int) -> int:
    return rows


_SURE: dict[str, Callable[[float, float, float, float], bool]] = {
    "<": lambda _, upper, lower, __: upper < lower,
    "<=": lambda _, upper, lower, __: upper <= lower,
    ">": lambda lower, _, __, upper: lower > upper,
    ">=": lambda lower, _, __, upper: lower >= upper,
    "==": lambda lower, upper, other_lower, other_upper: lower == upper == other_lower == other_upper,
}
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


class Symbolic:
    """A number that follows from the row count. ``at(rows)`` is its value, ``text`` the same in Python.

    ``slope`` is 1 where it never falls and -1 where it never rises with the rows, 0 where neither is known; ``affine``
    is (a, b) where it is ``a * rows + b``. ``multiple`` divides it at every row count, if it is whole.
    """

    __slots__ = ("affine", "at", "interval", "multiple", "slope", "text", "value")

    def __init__(
        self,
        interval: Interval,
        value: _Number,
        at: _At,
        text: str,
        slope: int,
        affine: tuple[int, int] | None = None,
        multiple: int = 1,
    ) -> None:
        self.interval = interval
        self.value = value
        self.at = at
        self.text = text
        self.slope = slope
        self.affine = affine
        self.multiple = multiple

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # so that isinstance(size, int) holds
        return type(self.value)

    def settle(self, use: str) -> Any:
        """The number, for the price of an interval in which it is always that number."""
        self.interval.compare(self, self.value, "==", f"{self.text} is {use}")
        return self.value

    # --- comparisons

    def _ordered(self, other: Any, relation: str) -> Any:
        if not _is_number(other):
            return NotImplemented
        holds = _OPERATORS[relation](self.value, _value(other))
        _narrow(self, other, relation if holds else _OPPOSITE[relation])
        return holds

    def __lt__(self, other: Any) -> Any:
        return self._ordered(other, "<")

    def __le__(self, other: Any) -> Any:
        return self._ordered(other, "<=")

    def __gt__(self, other: Any) -> Any:
        return self._ordered(other, ">")

    def __ge__(self, other: Any) -> Any:
        return self._ordered(other, ">=")

    def __eq__(self, other: Any) -> Any:
        if not _is_number(other):
            return NotImplemented
        number = _value(other)
        _narrow(self, other, "==" if self.value == number else "<" if self.value < number else ">")
        return self.value == number

    def __ne__(self, other: Any) -> Any:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __bool__(self) -> bool:
        return bool(self != 0)

    # --- arithmetic

    def __add__(self, other: Any) -> Any:
        return _add(self, other)

    __radd__ = __add__

    def __neg__(self) -> Any:
        return _multiply(self, -1)

    def __pos__(self) -> Any:
        return self

    def __sub__(self, other: Any) -> Any:
        return _add(self, -other) if _is_number(other) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return _add(-self, other)

    def __mul__(self, other: Any) -> Any:
        return _multiply(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return _divide(self, other, "//")

    def __rfloordiv__(self, other: Any) -> Any:
        return _divided_by(other, self, "//")

    def __truediv__(self, other: Any) -> Any:
        return _divide(self, other, "/")

    def __rtruediv__(self, other: Any) -> Any:
        return _divided_by(other, self, "/")

    def __mod__(self, other: Any) -> Any:
        return _modulo(self, other)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __lshift__(self, other: Any) -> Any:
        return self * (1 << other) if _is_plain_int(other) and other >= 0 else self._settled("shifted") << other

    def __rshift__(self, other: Any) -> Any:
        return self // (1 << other) if _is_plain_int(other) and other >= 0 else self._settled("shifted") >> other

    def __rlshift__(self, other: Any) -> Any:
        lower, upper = _bounds(self, self.interval.lo, self.interval.hi)
        if not _is_plain_int(other) or other < 0 or lower < 0 or upper > _MOST_SHIFT:
            return other << self._settled("a shift")
        return _made(self.interval, "{0} << {1}", operator.lshift, (other, self), self.slope)

    def bit_length(self) -> Any:
        """As of an int."""
        if _bounds(self, self.interval.lo, self.interval.hi)[0] < 0:
            return self._settled("a negative number's length in bits").bit_length()
        return _made(self.interval, "({0}).bit_length()", int.bit_length, (self,), self.slope)

    def __floor__(self) -> Any:
        return _made(self.interval, "int({0} // 1)", lambda value: int(value // 1), (self,), self.slope)

    def __ceil__(self) -> Any:
        return _made(self.interval, "int(-(-{0} // 1))", lambda value: int(-(-value // 1)), (self,), self.slope)

    def __invert__(self) -> Any:
        return -self - 1

    # --- what needs the number itself

    def _settled(self, use: str) -> Any:
        return self.settle(use)

    def __index__(self) -> int:
        return operator.index(self._settled("taken as an index"))

    def __int__(self) -> int:
        return int(self._settled("converted by int()"))

    def __float__(self) -> float:
        return float(self._settled("converted to a float"))

    def __round__(self, digits: int | None = None) -> Any:
        return round(self._settled("rounded"), digits)

    def __trunc__(self) -> int:
        return int(self._settled("truncated"))

    def __hash__(self) -> int:
        return hash(self._settled("a key"))

    def _shown(self) -> _Number:
        return self.value if self.interval.text_is_free else self._settled("part of a text")

    def __str__(self) -> str:
        return str(self._shown())

    def __repr__(self) -> str:
        return repr(self._shown())

    def __format__(self, form: str) -> str:
        return format(self._shown(), form)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._settled(f"asked for .{name}"), name)

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError("a size that stands for many row counts cannot be copied or pickled")


def _through_the_number(name: str) -> None:
    compute = getattr(operator, name)

    def method(self: Symbolic, *others: Any) -> Any:
        return compute(self.settle("an operand"), *[settled(other, "an operand") for other in others])

    def reflected(self: Symbolic, other: Any) -> Any:
        return compute(other, self.settle("an operand"))

    if name not in vars(Symbolic):  # the class of classes has an __or__
        setattr(Symbolic, name, method)
    setattr(Symbolic, f"__r{name.strip('_')}__", reflected)


for _name in ("__pow__", "__and__", "__or__", "__xor__", "__mod__", "__rshift__"):
    _through_the_number(_name)


def settled(value: Any, use: str = "what something is compiled for") -> Any:
    """``value``, or the number of a symbolic one, which then is always that number."""
    return value.settle(use) if is_symbolic(value) else value


def is_symbolic(value: Any) -> bool:
    """Whether ``value`` stands for many numbers."""
    return type(value) is Symbolic


def value_at(value: Any, rows: int) -> Any:
    """What ``value`` is at a row count."""
    return value.at(rows) if is_symbolic(value) else value


def text_of(value: Any) -> str:
    """``value`` as a Python expression of ``rows``."""
    return _text(value)


# --- how an expression is made


def _is_number(value: Any) -> bool:
    return is_symbolic(value) or type(value) in {int, float, bool}


def _is_plain_int(value: Any) -> bool:
    return type(value) in {int, bool}


def _value(value: Any) -> Any:
    return value.value if is_symbolic(value) else value


def _text(value: Any) -> str:
    return f"({value.text})" if is_symbolic(value) else f"({value!r})" if _is_number(value) else repr(value)


def _affine(value: Any) -> tuple[int, int] | None:
    if is_symbolic(value):
        found: tuple[int, int] | None = value.affine
        return found
    return (0, int(value)) if _is_plain_int(value) else None


def _multiple(value: Any) -> int:
    """What divides ``value`` at every row count, if it is whole; all divides 0."""
    if is_symbolic(value):
        return int(value.multiple)
    return abs(int(value)) if _is_plain_int(value) else 1


def _bounds(value: Any, lo: int, hi: int) -> tuple[float, float]:
    """The least and the greatest value from ``lo`` to ``hi``, as far as they are known."""
    if not is_symbolic(value):
        return value, value
    if value.slope == 0 and lo != hi:
        return -float("inf"), float("inf")
    first, last = value.at(lo), value.at(hi)
    return (first, last) if value.slope >= 0 else (last, first)


def _narrow(one: Symbolic, other: Any, relation: str) -> None:
    if is_symbolic(other) and one.text == other.text:
        return
    reason = f"{one.text} {relation} {other.text if is_symbolic(other) else other}"
    left, right = one.affine, _affine(other)
    if left is not None and right is not None:
        difference = _line(one.interval, left[0] - right[0], left[1] - right[1])
        if is_symbolic(difference):
            one.interval.compare(difference, 0, relation, reason)
    else:
        one.interval.compare(one, other, relation, reason)


def _line(interval: Interval, factor: int, offset: int) -> Any:
    """``factor * rows + offset``."""
    if factor == 0:
        return offset
    text = "rows" if factor == 1 else f"{factor} * rows"
    text += f" + {offset}" if offset > 0 else f" - {-offset}" if offset else ""
    return Symbolic(
        interval,
        factor * interval.rows + offset,
        lambda rows: factor * rows + offset,
        text,
        1 if factor > 0 else -1,
        (factor, offset),
        math.gcd(factor, offset),
    )


def _made(
    interval: Interval,
    form: str,
    compute: Callable[..., Any],
    operands: tuple[Any, ...],
    slope: int,
    multiple: int = 1,
) -> Symbolic:
    """An expression of ``operands``; ``form`` is its text with their places."""

    def at(rows: int) -> Any:
        return compute(*[value_at(operand, rows) for operand in operands])

    value = compute(*map(_value, operands))
    return Symbolic(interval, value, at, form.format(*map(_text, operands)), slope, multiple=multiple)


def _add(one: Symbolic, other: Any) -> Any:
    if not _is_number(other):
        return NotImplemented
    left, right = one.affine, _affine(other)
    if left is not None and right is not None:
        return _line(one.interval, left[0] + right[0], left[1] + right[1])
    if is_symbolic(other) and other.slope != one.slope:
        # nothing is known of the sum; where one of them goes by steps, a step of it is worth more
        stepped, straight = (one, other) if other.affine is not None else (other, one)
        return _add(straight, stepped.settle("added to what falls where it rises"))
    multiple = math.gcd(_multiple(one), _multiple(other))
    return _made(one.interval, "{0} + {1}", operator.add, (one, other), one.slope, multiple)


def _multiply(one: Symbolic, other: Any) -> Any:
    if not _is_number(other):
        return NotImplemented
    if _is_plain_int(other) and other == 0:
        return 0
    if one.affine is not None and _is_plain_int(other):
        return _line(one.interval, one.affine[0] * other, one.affine[1] * other)
    slope = _product_slope(one, other)
    if slope == 0 and is_symbolic(other) and other.affine is None:
        return _multiply(one, other.settle("multiplied by what falls where it rises"))
    return _made(one.interval, "{0} * {1}", operator.mul, (one, other), slope, _multiple(one) * _multiple(other))


def _product_slope(one: Symbolic, other: Any) -> int:
    if not is_symbolic(other):
        return one.slope if other >= 0 else -one.slope
    positive = all(_bounds(factor, one.interval.lo, one.interval.hi)[0] >= 0 for factor in (one, other))
    return one.slope if positive and one.slope == other.slope else 0


_DIVISIONS: dict[str, Callable[[Any, Any], Any]] = {"//": operator.floordiv, "/": operator.truediv}


def _divide(one: Symbolic, other: Any, sign: str) -> Any:
    if not _is_number(other):
        return NotImplemented
    # a divisor is nearly always a block size, which goes by steps
    other = settled(other, "a divisor")
    if sign == "//" and one.affine is not None and _is_plain_int(other) and other and one.affine[0] % other == 0:
        return _line(one.interval, one.affine[0] // other, one.affine[1] // other)
    slope = one.slope if other > 0 else -one.slope
    return _made(one.interval, f"{{0}} {sign} {{1}}", _DIVISIONS[sign], (one, other), slope)


def _divided_by(number: Any, one: Symbolic, sign: str) -> Any:
    """``number / one``: it falls where ``one`` rises, if neither is negative."""
    if not _is_number(number):
        return NotImplemented
    if number < 0 or not _bounds(one, one.interval.lo, one.interval.hi)[0] > 0:
        # a divisor that is 0 somewhere must not be met while the interval is narrowed
        return _DIVISIONS[sign](number, one.settle("a divisor"))
    return _made(one.interval, f"{{0}} {sign} {{1}}", _DIVISIONS[sign], (number, one), -one.slope)


def _modulo(one: Symbolic, other: Any) -> Any:
    if not _is_number(other):
        return NotImplemented
    other = settled(other, "a divisor")
    if not _is_plain_int(other):
        return one.settle("divided") % other
    if one.affine is not None and one.affine[0] % other == 0:
        return one.affine[1] % other
    if _is_plain_int(one.value) and one.multiple % other == 0:
        # a cluster's share of a grid, say, whatever number of clusters there is
        return 0
    return _made(one.interval, "{0} % {1}", operator.mod, (one, other), 0)
