"""Prepared weights: panels of 16 columns, whose words stand one after another along K.

An even number of panels; columns, and K at the end of each group, are filled with zeros."""

from __future__ import annotations

from collections.abc import Sequence

import torch

PANEL = 16
_PAIR = 2 * PANEL


def padded_group(group_size: int, k: int, depth: int) -> int:
    """Elements of a group with zeros up to a multiple of ``depth``, the elements of K in a step."""
    return -(-min(group_size, k) // depth) * depth


def byte_shifts(bits: int) -> list[int]:
    """The places of a word's elements of 4 or 8 bits: four neighbours along K are the low bits of its four bytes."""
    return [8 * (place % 4) + bits * (place // 4) for place in range(32 // bits)]


def pair_shifts(bits: int) -> list[int]:
    """The places of a word's elements of at most 8 bits: two neighbours along K are at one place in its two halves."""
    return [16 * (place % 2) + bits * (place // 2) for place in range(32 // bits)]


def fields_of(qweight: torch.Tensor, bits: int, k: int) -> torch.Tensor:
    """The words' elements as uint8 ``[k, n]``."""
    shifts = range(0, 32, bits)
    mask = 2**bits - 1
    fields = torch.stack([((qweight >> shift) & mask).to(torch.uint8) for shift in shifts], 1)
    return fields.flatten(0, 1)[:k]


def padded_rows(fields: torch.Tensor, group_size: int, padded: int) -> torch.Tensor:
    """``[k, n]`` with zeros after each group, ``[groups * padded, n]``."""
    k, n = fields.shape
    size = min(group_size, k)
    whole = torch.nn.functional.pad(fields, (0, 0, 0, -k % size)).view(-1, size, n)
    return torch.nn.functional.pad(whole, (0, 0, 0, padded - size)).flatten(0, 1)


def panels_of(fields: torch.Tensor, group_size: int, padded: int, shifts: Sequence[int]) -> torch.Tensor:
    """Unsigned elements ``[k, n]`` as int32 ``[panels, words of K, 16]``; ``shifts`` places a word's elements."""
    rows = padded_rows(fields, group_size, padded)
    columns = torch.nn.functional.pad(rows, (0, -rows.shape[1] % _PAIR))
    placed = columns.view(-1, len(shifts), columns.shape[1] // PANEL, PANEL)
    words = torch.zeros((placed.shape[2], placed.shape[0], PANEL), dtype=torch.int32, device=fields.device)
    for place, shift in enumerate(shifts):
        words |= placed[:, place].permute(1, 0, 2).to(torch.int32) << shift
    return words


def pair_panels(weight: torch.Tensor, padded: int) -> torch.Tensor:
    """A bfloat16 weight ``[n, k]`` as int32 ``[panels, padded / 2, 16]``: a word is two neighbours along K."""
    n, k = weight.shape
    whole = torch.nn.functional.pad(weight, (0, padded - k, 0, -n % _PAIR))
    return whole.contiguous().view(torch.int32).view(-1, PANEL, padded // 2).transpose(1, 2).contiguous()
