"""What masks show of latents: lengths, and tables of pages of one token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:  # see late_imports
    from registry.integrations.transformers.forwards.latents.masks import seen_latents

pytestmark = pytest.mark.usefixtures("late_imports")

LATENTS = torch.zeros(3, 1, 5, 4)


def test_no_mask_and_lengths_need_no_table() -> None:
    lengths = torch.tensor([2, 5, 1], dtype=torch.int32)
    assert [(seen.lengths.tolist(), seen.table) for seen in map(shown, (None, lengths.view(3, 1, 1, 1)))] == [
        ([5, 5, 5], None),
        ([2, 5, 1], None),
    ]


def shown(mask: torch.Tensor | None) -> object:
    return seen_latents(mask, LATENTS)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_table_lists_what_each_sequence_sees_in_order(rows: int) -> None:
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        mask = torch.rand(rows, 1, 1, 6, generator=generator) < 0.5
        seen = seen_latents(mask, LATENTS)
        assert seen is not None
        assert seen.table is not None
        assert (seen.lengths.dtype, seen.table.dtype) == (torch.int32, torch.int32)
        for sequence, (length, places) in enumerate(zip(seen.lengths.tolist(), seen.table.tolist(), strict=True)):
            own = mask[sequence % rows, 0, 0, :5].nonzero().flatten() + 5 * sequence
            assert places[:length] == own.tolist()
            assert all(0 <= place < 15 for place in places)


def test_a_mask_that_has_changed_is_read_again() -> None:
    mask = torch.ones(3, 1, 1, 5, dtype=torch.bool)
    before = seen_latents(mask, LATENTS)
    assert seen_latents(mask, LATENTS) is before
    assert seen_latents(mask, LATENTS[:, :, :4]).table.shape == (3, 4)
    mask[1, ..., 0] = False
    assert seen_latents(mask, LATENTS).lengths.tolist() == [5, 4, 5]
    with torch.inference_mode():
        mask = torch.ones(3, 1, 1, 5, dtype=torch.bool)
        assert seen_latents(mask, LATENTS).lengths.tolist() == [5, 5, 5]
        mask[1, ..., 0] = False
        assert seen_latents(mask, LATENTS).lengths.tolist() == [5, 4, 5]


def test_other_masks_have_no_lengths() -> None:
    of_heads, of_rows = torch.ones(3, 2, 1, 5, dtype=torch.bool), torch.ones(3, 1, 2, 5, dtype=torch.bool)
    short, of_others = torch.ones(3, 1, 1, 4, dtype=torch.bool), torch.ones(2, 1, 1, 5, dtype=torch.bool)
    for mask in (of_heads, of_rows, short, of_others, torch.zeros(3, 1, 1, 5), of_heads[:, 0]):
        assert seen_latents(mask, LATENTS) is None
