"""Liger's rotary embedding, which knows no positions: the table's rows are looked up for it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from registry import Device, Problem

from .rows import layout_reasons, library, liger

_MOST_ELEMENTS = 2**20
"""A program's block of heads by pairs may have no more, in Triton."""


def rotary_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why Liger cannot rotate a problem's heads."""
    yield from layout_reasons(problem, device)
    if problem.style != "neox":
        yield f"it rotates halves of heads (neox), not {problem.style}"
    if not problem.kv_heads:
        yield "it rotates queries and keys, and there are no keys"
    if _power_of_2(max(problem.heads, problem.kv_heads)) * _power_of_2(problem.rotary_dim) // 2 > _MOST_ELEMENTS:
        yield f"{problem.heads} heads of {problem.head_dim} elements are no block of its kernel"


def rotary_embedding(
    positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, head_size: int, table: torch.Tensor, _neox: bool
) -> None:
    """Rotate query and key in place."""
    places, rotary_dim = positions.flatten(), table.shape[1]
    cos, sin = (half[places] for half in table.chunk(2, -1))
    heads = [x.view(1, positions.numel(), -1, head_size).transpose(1, 2) for x in (query, key)]
    library("rope").rope_forward(*heads, cos, sin, rotary_dim=rotary_dim)


def _power_of_2(number: int) -> int:
    return 1 << (max(number, 1) - 1).bit_length()


ROTARY_EMBEDDING = liger("rotary_embedding", rotary_embedding, rotary_reasons, into=True)
