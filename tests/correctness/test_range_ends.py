"""The sizes of a range at which a plan is verified: both ends of each divisibility, and none other."""

from __future__ import annotations

import pytest

from registry.correctness.range_ends import divisibility, ends_by_divisibility


@pytest.mark.parametrize(
    ("low", "high"), [(513, 1024), (1, 1), (2, 2), (3, 4), (9, 16), (17, 17), (100, 131), (33, 63)]
)
def test_the_ends_are_the_least_and_greatest_of_each_divisibility(low: int, high: int) -> None:
    sizes = range(low, high + 1)
    expected = {}
    for size in sizes:
        first, _ = expected.get(divisibility(size), (size, size))
        expected[divisibility(size)] = first, size
    assert sorted(ends_by_divisibility(low, high)) == sorted(expected.values())


def test_divisibility_is_what_compilers_specialise_on() -> None:
    assert [divisibility(size) for size in (1, 6, 12, 8, 16, 48, 1024)] == [1, 2, 4, 8, 16, 16, 16]
