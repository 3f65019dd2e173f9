"""Random arguments of attention_decode: queries, caches in rows or in pages, tables of pages."""

from __future__ import annotations

import math
from typing import Any

import torch

from ...problem import Problem
from .. import fills
from .decode_lengths import decode_window, draw_lengths, draw_short

KINDS = ("normal", "outliers", "last_key", "first_key", "constant", "beyond", "nan")
"""Kinds of inputs. last_key, first_key: the last, or the first, key that a token sees has nearly all of its weight.

constant: all keys are alike, so that the result is the mean of the values. beyond: sequences of any length, also
empty ones, with NaN after their ends and nonsense in the rest of the table. nan: one key has one NaN.
"""

FLOAT8 = "float8_e4m3fn"
CAP = 20.0
"""The cap of problems with one, of the size of the largest logits of "outliers"."""
_SCALES = (0.75, 1.5)
_WILD = (-1, 2**30)


def decode_inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    """The schema's arguments in order."""
    device, batch = generator.device, problem.batch
    lengths = (draw_short if kind == "beyond" else draw_lengths)(problem, generator)
    q = fills.normal((batch, problem.q_len, problem.heads, problem.head_dim), problem.torch_dtype, generator)
    keys, values = _drawn(problem, generator), _drawn(problem, generator)
    _shape(kind, problem, (q, keys, values), lengths, generator)
    table = _table(problem, lengths, generator)
    if problem.page:
        keys, values = _paged(keys, problem, table), _paged(values, problem, table)
        table = _wild_beyond(table, problem, lengths) if kind == "beyond" else table
    float8 = problem.kv_dtype == FLOAT8
    scales = [torch.full((1,), scale, device=device) if float8 else None for scale in _SCALES]
    softcap = CAP if problem.softcap else 0.0
    return q, keys, values, lengths, table if problem.page else None, *scales, None, softcap, decode_window(problem)


def _drawn(problem: Problem, generator: torch.Generator) -> torch.Tensor:
    """Keys or values ``[batch, kv_len, kv_heads, head_dim]`` in the dtype of the cache."""
    dtype = torch.float8_e4m3fn if problem.kv_dtype == FLOAT8 else problem.torch_dtype
    return fills.normal((problem.batch, problem.kv_len, problem.kv_heads, problem.head_dim), dtype, generator)


def _shape(
    kind: str,
    problem: Problem,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    lengths: torch.Tensor,
    generator: torch.Generator,
) -> None:
    """Change queries, keys and values, in place, to those of the kind."""
    q, keys, values = tensors
    sequence = torch.arange(problem.batch, device=q.device)
    last = (lengths.long() - 1).clamp_min(0)
    if kind == "outliers":
        fills.plant_outliers(q, 12.0, generator)
    elif kind in ("last_key", "first_key"):
        # logits of about 2 sqrt(head_dim) above all others, for every head: queries are positive
        q.abs_().add_(0.5)
        first = last - problem.q_len + 2 - problem.span if problem.span else torch.zeros_like(last)
        _set(
            keys, sequence, last if kind == "last_key" else first.clamp_min(0), 2.0 + 8.0 / math.sqrt(problem.head_dim)
        )
    elif kind == "constant":
        keys.copy_(keys[:, :1].clone().expand_as(keys))
    elif kind == "beyond":
        after = torch.arange(problem.kv_len, device=q.device) >= lengths[:, None]
        for cache in (keys, values):
            _bits(cache)[after] = _nan(cache)
    elif kind == "nan":
        _bits(keys)[sequence[-1:], last[-1:], -1, -1] = _nan(keys)


def _set(cache: torch.Tensor, sequence: torch.Tensor, place: torch.Tensor, value: float) -> None:
    _bits(cache)[sequence, place] = _bits(torch.full((1,), value, device=cache.device).to(cache.dtype))


def _nan(cache: torch.Tensor) -> torch.Tensor:
    return _bits(torch.full((1,), math.nan, device=cache.device).to(cache.dtype))[0]


def _bits(cache: torch.Tensor) -> torch.Tensor:
    """The tensor itself; one of float8, which no device indexes, as bytes."""
    return cache.view(torch.uint8) if cache.dtype.itemsize == 1 else cache


def _table(problem: Problem, lengths: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Pages of each sequence, int32 ``[batch, kv_len / page]``, in random order; the cache has one page more."""
    if not problem.page:
        return lengths
    pages = problem.kv_len // problem.page
    order = torch.randperm(problem.batch * pages + 1, device=lengths.device, generator=generator)
    return order[:-1].view(problem.batch, pages).to(torch.int32)


def _paged(tokens: torch.Tensor, problem: Problem, table: torch.Tensor) -> torch.Tensor:
    """``[batch, kv_len, ...]`` as ``[pages, page, ...]``, each page where the table says; NaN in that of nobody."""
    pages = tokens.view(table.numel(), problem.page, *tokens.shape[2:])
    made = torch.empty((table.numel() + 1, *pages.shape[1:]), dtype=tokens.dtype, device=tokens.device)
    _bits(made).copy_(_nan(made).expand(made.shape))
    _bits(made)[table.flatten().long()] = _bits(pages)
    return made


def _wild_beyond(table: torch.Tensor, problem: Problem, lengths: torch.Tensor) -> torch.Tensor:
    """The table with numbers of no page behind the pages that a sequence has begun."""
    page = torch.arange(table.shape[1], device=table.device)
    wild = torch.where(page % 2 > 0, *_WILD).to(torch.int32)
    return torch.where(page * problem.page < lengths[:, None], table, wild)
