"""Sizes that stand for many row counts: what is said of an interval holds for each of its row counts."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.backends.estimate import next_power_of_2
from registry.dispatch.plans.leading import Part
from registry.symbolic import MOST_ROWS, Interval, is_symbolic, settled, text_of, value_at

NUMBERS = st.integers(1, 5000)


def cdiv(size: Any, block: int) -> Any:
    return -(-size // block)


# what launches, spaces and heuristics are made of; each is run with a size and with plain numbers
EXPRESSIONS: list[Callable[[Any, int], Any]] = [
    cdiv,
    lambda rows, n: rows * n // 16 + 3,
    lambda rows, n: next_power_of_2(rows) * n,
    lambda rows, n: max(16, min(n, next_power_of_2(rows))),
    lambda rows, n: (rows * 16) % 16 + n,
    lambda rows, n: rows % 16 == 0 and n,
    lambda rows, n: [block for block in (1, 2, 4, 8, 16, 32) if block <= min(rows, n)],
    lambda rows, n: 1.5 if rows <= n else -0.5,
    lambda rows, n: abs(rows / n - 2) < 1,
    lambda rows, n: math.ceil(rows / n) - math.floor(rows / 7),
    lambda rows, n: cdiv(rows, 64) * cdiv(n, 64) >= 2 * 132,
    lambda rows, n: n // rows,
    lambda rows, n: sum(divmod(rows, n)),
    lambda rows, n: sorted([rows, n, 2 * rows - n]),
    lambda rows, n: rows << 3 >> 1,
    lambda rows, n: rows & 15 if n > 100 else rows ^ n,
    lambda rows, n: math.gcd(rows, 16) * n,
    lambda rows, n: f"{rows} rows" if n % 2 else str(n),
    lambda rows, n: {rows: n}[rows] + n,
    lambda rows, n: len(range(rows)) == n,
    lambda rows, n: math.prod([rows, n, 2]) > 2**20,
    lambda rows, n: rows * rows - n,
    lambda rows, n: (rows - 100) * (rows + 1),
    lambda rows, n: rows * next_power_of_2(rows) > n * n,
    lambda rows, n: -rows // n,
    lambda rows, n: cdiv(rows, max(16, min(64, next_power_of_2(rows)))) * n / 132 <= 8,
    lambda rows, n: next_power_of_2(rows) - rows // n,
    lambda rows, n: rows // n - next_power_of_2(rows) // 2,
    lambda rows, n: (n - rows) * next_power_of_2(rows) + rows % next_power_of_2(rows),
    lambda rows, n: (-n // rows) + n / rows,
    lambda rows, n: n - rows if rows < n else rows - n,
    lambda rows, n: bool(rows) and (rows != n) is False,
    lambda rows, n: math.log2(rows) > 7,
    lambda rows, n: n % rows,
    lambda rows, n: rows**2 % n,
    lambda rows, n: ~rows + (rows | 1) + n,
    lambda rows, n: [0] * 3 + [rows],
    lambda rows, n: cdiv(rows, 16) * n % 8 + cdiv(rows, n) * -8 % 4,
    lambda rows, n: (cdiv(rows, 16) * 12 + next_power_of_2(rows) * n * 8) % 4 == n % 3,
    lambda rows, n: (rows / n * 4) % 4 + (cdiv(rows, n) * 0.5) % 1 + rows * 4 // n % 4,
    lambda rows, n: (rows % 7 * 8 + n) % 8 + (4 * (rows // 3) + 6) % -2,
]


def evaluated(value: Any, rows: int) -> Any:
    if isinstance(value, list):
        return [value_at(one, rows) for one in value]
    return value_at(value, rows)


@pytest.mark.parametrize("expression", EXPRESSIONS)
@given(rows=NUMBERS, n=NUMBERS, others=st.lists(NUMBERS, max_size=20))
@settings(max_examples=25, deadline=None)
def test_what_holds_for_one_row_count_holds_for_the_interval(
    expression: Callable[[Any, int], Any], rows: int, n: int, others: list[int]
) -> None:
    interval = Interval(rows)
    value = expression(interval.size(), n)
    assert evaluated(value, rows) == expression(rows, n)
    near = [interval.lo, interval.hi, interval.lo + 1, interval.hi - 1, rows - 1, rows + 1]
    for other in {min(number, 10**6) for number in (*others, *near)}:
        if other in interval:
            assert evaluated(value, other) == expression(other, n), (interval.lo, interval.hi)
            assert not is_symbolic(value) or eval(text_of(value), {"rows": other}) == expression(other, n)


@given(rows=NUMBERS, n=NUMBERS, block=st.sampled_from([1, 4, 16, 64]))
def test_the_ends_of_an_interval_are_sharp(rows: int, n: int, block: int) -> None:
    def answer(size: Any) -> bool:
        return bool(cdiv(size, block) * 3 <= n)

    interval = Interval(rows)
    said = answer(interval.size())
    assert said == answer(interval.lo) == answer(interval.hi)
    assert interval.lo == 1 or answer(interval.lo - 1) != said
    assert interval.hi == MOST_ROWS or answer(interval.hi + 1) != said


def test_a_power_of_two_holds_between_two_powers() -> None:
    interval = Interval(100)
    power: Callable[[Any], Any] = next_power_of_2
    assert settled(power(interval.size())) == 128
    assert (interval.lo, interval.hi) == (65, 128)
    assert "bit_length" in interval.reason


def test_arithmetic_that_cancels_asks_nothing() -> None:
    interval = Interval(100)
    rows = interval.size()
    assert (rows * 4096) % 16 == 0
    assert rows * 3 - rows - 2 * rows == 0
    assert rows * 64 // 32 == rows * 2
    assert cdiv(rows, 32) * 4 % 4 == 0
    assert (cdiv(rows, 32) * 8 + rows * 12 - 4) % -4 == 0
    assert rows > 0
    assert 264 / rows - 2 == 264 / rows - 2
    assert (interval.lo, interval.hi) == (1, MOST_ROWS)


@pytest.mark.parametrize(
    "look",
    [
        int, float, hash, str, repr, range, math.sqrt, lambda size: [1] * size, "{:d}".format,
        lambda size: f"{size:4d}", lambda size: {size}, lambda size: size.to_bytes(4, "little"),
        lambda size: round(size, -1), lambda size: math.gcd(size, 8), lambda size: list(range(200))[size],
        lambda size: size & 7, lambda size: size % 7 == 1, lambda size: 1 << size,
    ],
)  # fmt: skip
def test_who_looks_at_the_number_gets_an_interval_of_it_alone(look: Callable[[Any], Any]) -> None:
    interval = Interval(100)
    look(interval.size())
    assert (interval.lo, interval.hi) == (100, 100)
    assert "rows" in interval.reason


@pytest.mark.parametrize("refused", [json.dumps, copy.deepcopy, lambda size: size < "5", lambda size: size @ size])
def test_what_cannot_be_followed_is_an_error(refused: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError):
        refused(Interval(100).size())


def test_it_passes_for_a_number_of_its_type() -> None:
    rows = Interval(100).size()
    assert isinstance(rows, int)
    assert not isinstance(rows, bool)
    assert isinstance(rows / 3, float)
    assert rows != "100"


def test_text_for_people_may_be_made_of_sizes() -> None:
    interval = Interval(100)
    with interval.free_text():
        assert f"{interval.size()} rows, {interval.size() * 2!r}" == "100 rows, 200"
    assert len(interval) == MOST_ROWS


# --- several leading sizes


def parts(interval: Interval, *sizes: int) -> list[Any]:
    return [Part(interval, sizes, frozenset({place})) for place in range(len(sizes))]


def test_the_product_of_all_leading_sizes_is_the_row_count() -> None:
    interval = Interval(30)
    a, b, c = parts(interval, 2, 3, 5)
    assert evaluated(math.prod([a, b, c]), 77) == 77
    assert evaluated(4 * c * (b * a), 10) == 40
    assert a >= 1
    assert a != 0
    assert b * 8 == 8 * b
    assert not a < 1
    assert not interval.unsound
    assert len(interval) == MOST_ROWS


@pytest.mark.parametrize(
    "look",
    [
        lambda a, b: a == b, lambda a, b: a > 1, lambda a, b: a + b, lambda a, b: a % 2, lambda a, b: int(a),
        lambda a, b: range(a), lambda a, b: a * a, lambda a, b: {a: 1}, lambda a, b: f"{a}", lambda a, b: a // 2,
        lambda a, b: -a, lambda a, b: a.bit_length(), lambda a, b: a != 3, lambda a, b: a * b.__index__(),
    ],
)  # fmt: skip
def test_one_leading_size_alone_gives_the_interval_up(look: Callable[[Any, Any], Any]) -> None:
    interval = Interval(6)
    a, b = parts(interval, 2, 3)
    look(a, b)
    assert "leading sizes" in interval.unsound
