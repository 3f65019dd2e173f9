"""Liger's rotary embedding of copies, forward and backward: its functions write to what they are given."""

from __future__ import annotations

import torch

from .rotary import rotary_reasons
from .rows import library, liger


def _copied(x: torch.Tensor, tokens: int, head_size: int) -> torch.Tensor:
    """A copy ``[1, heads, tokens, head_size]`` whose memory is in the order of ``x``."""
    return x.clone().view(1, tokens, -1, head_size).transpose(1, 2)


def _angles(positions: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = (half[positions.flatten()] for half in table.chunk(2, -1))
    return cos, sin


def apply_rotary(
    positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, head_size: int, table: torch.Tensor, _neox: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotated copies of query and key."""
    heads = [_copied(x, positions.numel(), head_size) for x in (query, key)]
    found = library("rope").rope_forward(*heads, *_angles(positions, table), rotary_dim=table.shape[1])
    return found[0].transpose(1, 2).view(query.shape), found[1].transpose(1, 2).view(key.shape)


def apply_rotary_backward(
    query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, head_size: int, _neox: bool,
    need_query: bool, need_key: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The gradients of query and key; it computes both where one is needed."""
    heads = [_copied(x, positions.numel(), head_size) for x in (query, key)]
    found = library("rope").rope_backward(*heads, *_angles(positions, table), rotary_dim=table.shape[1])
    grads = (x.transpose(1, 2).view(like.shape) for x, like in zip(found, (query, key), strict=True))
    grad_query, grad_key = (
        grad if need else grad.new_empty(0) for grad, need in zip(grads, (need_query, need_key), strict=True)
    )
    return grad_query, grad_key


APPLY_ROTARY = liger("apply_rotary", apply_rotary, rotary_reasons)
APPLY_ROTARY_BACKWARD = liger("apply_rotary_backward", apply_rotary_backward, rotary_reasons)
