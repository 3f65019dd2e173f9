"""Which blocks of keys each block of queries sees by causality and a window, in the form that FlexAttention reads."""

from __future__ import annotations

from typing import NamedTuple

import torch

from registry.problem import Problem, TensorSpec

BLOCK = 128
"""Queries and keys of a block, FlexAttention's default: tiles of its kernels divide it."""

WHOLE = 2**30
"""The size of a block that holds any length, by which FlexAttention marks that all keys are seen."""


class SeenBlocks(NamedTuple):
    """For each block of queries the number of blocks of keys that it sees, and these in order, int32.

    ``partial``: some of the pairs of the blocks are seen, ``full``: all of them, which no mask is computed for; None
    where every query sees every key. Numbers are [1, 1, blocks of queries], places [1, 1, blocks of queries, blocks of
    keys], where those behind the number are the blocks that are not seen.
    """

    partial_numbers: torch.Tensor
    partial_places: torch.Tensor
    full_numbers: torch.Tensor | None
    full_places: torch.Tensor | None


def limits_rows(problem: Problem) -> bool:
    """Whether causality or a window hides keys of a problem."""
    return bool(problem.causal) or problem.span is not False


def block_specs(problem: Problem, device: torch.device) -> tuple[TensorSpec | None, ...]:
    """The specs of the tensors of ``seen_blocks``; nothing is allocated."""
    if not limits_rows(problem):
        return (*_specs(1, 1, device), None, None)
    return _specs(_blocks(problem.q_len), _blocks(problem.kv_len), device) * 2


def _specs(queries: int, keys: int, device: torch.device) -> tuple[TensorSpec, ...]:
    shapes = (1, 1, queries), (1, 1, queries, keys)
    return tuple(TensorSpec.contiguous(shape, torch.int32, device) for shape in shapes)


def _blocks(length: int) -> int:
    return -(-length // BLOCK)


def seen_blocks(problem: Problem, device: torch.device) -> SeenBlocks:
    """The blocks of a problem. They are computed on the host from the lengths: no mask of single keys is made."""
    if not limits_rows(problem):
        number, place = torch.ones(1, 1, 1, dtype=torch.int32), torch.zeros(1, 1, 1, 1, dtype=torch.int32)
        return SeenBlocks(number.to(device), place.to(device), None, None)
    some, every = _some_and_every(problem)
    return SeenBlocks(*_ordered(some & ~every, device), *_ordered(every, device))


def _some_and_every(problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether some, and whether all, pairs of a block of queries and one of keys are seen, bool [queries, keys].

    Rows of one block see intervals of keys, each a key further than the one before: together those from the first
    key of the first row to the last one of the last row, and in common those between the other two ends.
    """
    q_len, kv_len = problem.q_len, problem.kv_len
    window = kv_len + q_len if problem.span is False else problem.span - 1
    ahead = 0 if problem.causal else window
    row = torch.arange(0, _blocks(q_len) * BLOCK, BLOCK)[:, None]
    own = row + kv_len - q_len
    last_own = (row + BLOCK).clamp(max=q_len) - 1 + kv_len - q_len
    key = torch.arange(0, _blocks(kv_len) * BLOCK, BLOCK)[None, :]
    last_key = key + BLOCK - 1
    some = (key <= (last_own + ahead).clamp(max=kv_len - 1)) & (last_key >= (own - window).clamp(min=0))
    # blocks that lengths do not fill are never whole, as torch's own create_block_mask has it
    filled = (row + BLOCK <= q_len) & (last_key < kv_len)
    every = filled & (key >= last_own - window) & (last_key <= own + ahead)
    return some, every


def _ordered(seen: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The number of blocks of each row of ``seen``, and their places before those of the others."""
    places = seen.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    number, place = seen.sum(-1, dtype=torch.int32), places.to(torch.int32)
    return number.view(1, 1, -1).to(device), place.view(1, 1, *places.shape).to(device)
