"""Two tiers of tests: what every change must pass, and what is marked ``thorough``; conftest.py says which is which."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import pytest

THOROUGH = pytest.mark.thorough

_Case = TypeVar("_Case")


def spread(cases: Sequence[_Case], count: int) -> list[_Case]:
    """``count`` of the cases, in their order; all if there are no more.

    Steps by the golden ratio meet all values of each parameter of a matrix: even steps may meet one of two alone.
    """
    total = len(cases)
    step = next((step for step in range(round(total * 0.618), total) if math.gcd(step, total) == 1), 1)
    return [cases[place] for place in sorted(place * step % total for place in range(min(count, total)))]


def one_of_each(cases: Iterable[Any], key: Callable[..., object] = lambda *values: None) -> list[Any]:
    """Parameters of which one in each group is for every change, and the others are thorough.

    Of the first group it is the first case, of the second the second, and so on in turn, so that the groups together
    have what their cases differ in: with a group for each op, all dtypes are met.

    cases  values, or tuples of values of several arguments, or what ``pytest.param`` made of them
    key    the group of a case, by its values; all are one group when not given
    """
    params = [_param(case) for case in cases]
    groups: dict[object, list[Any]] = {}
    for param in params:
        groups.setdefault(key(*param.values), []).append(param)
    kept = {id(group[number % len(group)]) for number, group in enumerate(groups.values())}
    return [param if id(param) in kept else _thorough(param) for param in params]


def _param(case: Any) -> Any:
    if hasattr(case, "marks"):
        return case
    return pytest.param(*case) if isinstance(case, tuple) else pytest.param(case)


def _thorough(param: Any) -> Any:
    return pytest.param(*param.values, marks=(*param.marks, THOROUGH), id=param.id)
