"""Rows that are moved round: as torch.roll moves each, by far fewer operations, in any amount of memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from registry.tuner.measure import rolled

STEPS = [0, 1, 6, 7, 8, 1 << 40, -3]
LIMITS = pytest.mark.parametrize("doubled_bytes", [rolled._DOUBLED_BYTES, 60, 0], ids=["at once", "by two", "none"])


def rows_of(size: int) -> list[torch.Tensor]:
    """Rows apart from each other, as those of a stack are."""
    return list(torch.arange(len(STEPS) * (size + 3), dtype=torch.int16).view(len(STEPS), size + 3)[:, 1 : size + 1])


@LIMITS
@pytest.mark.parametrize("size", [0, 1, 7])
def test_every_row_holds_the_source_moved_by_its_steps(
    monkeypatch: pytest.MonkeyPatch, doubled_bytes: int, size: int
) -> None:
    monkeypatch.setattr(rolled, "_DOUBLED_BYTES", doubled_bytes)
    rows, source = rows_of(size), torch.arange(100, 100 + size, dtype=torch.int16)
    rolled.write_rolled(rows, source, STEPS)
    assert [row.tolist() for row in rows] == [source.roll(steps).tolist() for steps in STEPS]


@LIMITS
@pytest.mark.parametrize("size", [0, 1, 7])
def test_every_row_is_moved_by_its_steps_and_nothing_beside_it(
    monkeypatch: pytest.MonkeyPatch, doubled_bytes: int, size: int
) -> None:
    monkeypatch.setattr(rolled, "_DOUBLED_BYTES", doubled_bytes)
    rows = rows_of(size)
    expected = [row.roll(steps).tolist() for row, steps in zip(rows, STEPS, strict=True)]
    beside = [int(row.as_strided((1,), (1,), int(row.storage_offset()) + size)) for row in rows]
    rolled.roll(rows, STEPS)
    assert [row.tolist() for row in rows] == expected
    assert [int(row.as_strided((1,), (1,), int(row.storage_offset()) + size)) for row in rows] == beside
    rolled.roll([], [])


class Counted(TorchDispatchMode):
    """Counts the operations of torch."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_a_row_takes_one_operation_and_all_of_them_two_more() -> None:
    rows, source = rows_of(7), torch.arange(7, dtype=torch.int16)
    with Counted() as counted:
        rolled.write_rolled(rows, source, STEPS)
    assert counted.count <= len(rows) + 2
