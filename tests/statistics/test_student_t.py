"""Quantiles of Student's t, against a table."""

from __future__ import annotations

import pytest

from registry.statistics.student_t import t_quantile


@pytest.mark.parametrize(
    ("probability", "freedom", "known"),
    [
        (0.975, 1, 12.706), (0.975, 2, 4.303), (0.995, 2, 9.925), (0.975, 3, 3.182), (0.995, 4, 4.604),
        (0.975, 5, 2.571), (0.99, 10, 2.764), (0.975, 29, 2.045),
    ],
)  # fmt: skip
def test_quantiles_of_student_t(probability: float, freedom: int, known: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(known, abs=1e-3)


def test_quantiles_between_whole_degrees_of_freedom_lie_between() -> None:
    values = [t_quantile(0.975, freedom) for freedom in (4, 4.25, 4.5, 4.75, 5)]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == 5
