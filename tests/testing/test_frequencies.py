"""check_frequencies: what it accepts, what it refuses, and how seldom it is wrong."""

from __future__ import annotations

import pytest
import torch

from registry.errors import CheckError, InvalidArgumentError
from registry.testing import check_frequencies

SHARES = torch.tensor([0.5, 0.25, 0.125, 0.125, 0.0])


def drawn(shares: torch.Tensor, count: int, seed: int = 0) -> torch.Tensor:
    return shares.multinomial(count, replacement=True, generator=torch.Generator().manual_seed(seed))


def test_samples_of_the_distribution_are_accepted() -> None:
    for seed in range(50):
        check_frequencies(drawn(SHARES, 2000, seed), SHARES)
    check_frequencies(torch.tensor([0]), SHARES)


def test_a_value_without_probability_may_not_come_once() -> None:
    samples = drawn(SHARES, 100)
    samples[7] = 4
    with pytest.raises(CheckError, match="1 of 100 samples are 4, which has the probability 0"):
        check_frequencies(samples, SHARES)


@pytest.mark.parametrize("count", [2000, 100_000])
def test_another_distribution_is_refused_from_twice_the_allowed_distance_on(count: int) -> None:
    allowed = (2 * (5 * 0.6931 + 20.7233) / count) ** 0.5
    off = SHARES + allowed * torch.tensor([-1.0, 1.0, 0.0, 0.0, 0.0])
    with pytest.raises(CheckError, match=f"frequencies of {count} samples are .* [01] came"):
        check_frequencies(drawn(off, count), SHARES)


@pytest.mark.parametrize(
    ("samples", "shares"),
    [
        (torch.zeros(0, dtype=torch.int64), SHARES), (torch.tensor([0]), SHARES * 2),
        (torch.tensor([0]), torch.full((5000,), 1 / 5000)),
    ],
)  # fmt: skip
def test_what_is_no_distribution_is_an_error(samples: torch.Tensor, shares: torch.Tensor) -> None:
    with pytest.raises(InvalidArgumentError, match="add up to"):
        check_frequencies(samples, shares)


def test_samples_outside_of_the_values_are_told() -> None:
    with pytest.raises(CheckError, match="samples from -1 to 5, expected 0 to 4"):
        check_frequencies(torch.tensor([-1, 5]), SHARES)
