"""Results of several calls are compared at once where they are alike and small."""

from __future__ import annotations

import pytest
import torch

from registry.tuner.verify import stacked as module
from registry.tuner.verify.stacked import stacked


def results(*numbers: float) -> tuple[torch.Tensor, ...]:
    return tuple(torch.full((2, 3), number) for number in numbers)


def test_calls_that_are_alike_are_stacked_result_by_result() -> None:
    (found,) = stacked([results(1.0, 2.0), results(3.0, 4.0), results(5.0, 6.0)])
    assert [each[:, 0, 0].tolist() for each in found] == [[1.0, 3.0, 5.0], [2.0, 4.0, 6.0]]


@pytest.mark.parametrize(
    "other",
    [(torch.zeros(3, 2),), (torch.zeros(2, 3).half(),), results(1.0, 2.0), (torch.nn.Parameter(torch.zeros(2, 3)),)],
    ids=["shape", "dtype", "number", "class"],
)
def test_calls_that_differ_stay_as_they_are(other: tuple[torch.Tensor, ...]) -> None:
    calls = [results(1.0), other]
    assert stacked(calls) is calls


def test_large_results_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STACKED_BYTES", 47)
    calls = [results(1.0), results(2.0)]
    assert stacked(calls) is calls
