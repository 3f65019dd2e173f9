"""Rows of elements that are moved round, many rows by a few operations.

To move each row by itself takes a dozen small operations: 240 for 16 copies of an input, 0.3 ms of the host, thrice for
a pair of samples. Here it takes 21.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...correctness.batched import copy_each

_DOUBLED_BYTES = 64 << 20
"""The most memory for rows that are written twice in a row, of which any part of a row's length is a moved row."""


def write_rolled(rows: Sequence[torch.Tensor], source: torch.Tensor, steps: Sequence[int]) -> None:
    """Copy ``source`` into each of ``rows``, moved by the number of ``steps`` at its index; the last come first.

    ``source`` and the rows have one dimension, of one length, and one dtype.
    """
    size = len(source)
    if not size:
        return
    cuts = [count % size for count in steps]
    if 2 * source.nbytes <= _DOUBLED_BYTES:
        doubled = torch.cat((source, source))
        copy_each(rows, [doubled[size - cut : 2 * size - cut] for cut in cuts])
        return
    # so large ones have few copies
    for row, cut in zip(rows, cuts, strict=True):
        row[cut:].copy_(source[: size - cut])
        row[:cut].copy_(source[size - cut :])


def roll(rows: Sequence[torch.Tensor], steps: Sequence[int]) -> None:
    """Move the elements of each row by the number of ``steps`` at its index; the last come first."""
    size = len(rows[0]) if rows else 0
    if not size:
        return
    together = max(1, _DOUBLED_BYTES // (2 * rows[0].nbytes))
    for first in range(0, len(rows), together):
        some = rows[first : first + together]
        doubled = torch.cat([row for row in some for _ in range(2)]).view(len(some), 2 * size)
        cuts = [count % size for count in steps[first : first + together]]
        parts = [row[size - cut : 2 * size - cut] for row, cut in zip(doubled.unbind(), cuts, strict=True)]
        copy_each(some, parts)
