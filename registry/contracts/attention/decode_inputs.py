"""Random arguments of attention_decode: queries, caches in rows or in pages, tables of pages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ...problem import Problem, torch_dtype
from .. import fills
from .decode_lengths import decode_window, draw_lengths, draw_short
from .paging import bits_of, nan_bits, page_table, paged, wild_beyond

KINDS = ("normal", "outliers", "last_key", "first_key", "constant", "beyond", "nan")
"""Kinds of inputs. last_key, first_key: the last, or the first, key that a token sees has nearly all of its weight.

constant: all keys are alike, so that the result is the mean of the values. beyond: sequences of any length, also
empty ones, with NaN after their ends and nonsense in the rest of the table. nan: one key has one NaN.
int8 has no NaN: there 127 is after the ends, and one query has the NaN. Its outliers are keys and values, too: a scale
is made for the largest, and leaves few levels to the others.
"""

FLOAT8, INT8 = "float8_e4m3fn", "int8"
CAP = 20.0
"""The cap of problems with one, of the size of the largest logits of "outliers"."""
_SCALES: Mapping[str, tuple[float, float]] = {FLOAT8: (0.75, 1.5), INT8: (0.03, 0.02)}
_SPREAD, _FEW = 40.0, 5.0
"""Standard deviations of levels of int8: all are drawn, -128 among them, or beside outliers few."""


def decode_inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    """The schema's arguments in order."""
    device, batch = generator.device, problem.batch
    lengths = (draw_short if kind == "beyond" else draw_lengths)(problem, generator)
    q = fills.normal((batch, problem.q_len, problem.heads, problem.head_dim), problem.torch_dtype, generator)
    keys, values = (_drawn(problem, kind, generator) for _ in range(2))
    _shape(kind, problem, (q, keys, values), lengths, generator)
    table = page_table(problem, lengths, generator)
    if problem.page:
        keys, values = paged(keys, problem, table), paged(values, problem, table)
        table = wild_beyond(table, problem, lengths) if kind == "beyond" else table
    own = _SCALES.get(problem.kv_dtype, (None, None))
    scales = [None if scale is None else torch.full((1,), scale, device=device) for scale in own]
    softcap = CAP if problem.softcap else 0.0
    return q, keys, values, lengths, table if problem.page else None, *scales, None, softcap, decode_window(problem)


def _drawn(problem: Problem, kind: str, generator: torch.Generator) -> torch.Tensor:
    """Keys or values ``[batch, kv_len, kv_heads, head_dim]`` in the dtype of the cache."""
    dtype = problem.torch_dtype if problem.kv_dtype == "auto" else torch_dtype(problem.kv_dtype)
    shape = (problem.batch, problem.kv_len, problem.kv_heads, problem.head_dim)
    if dtype != torch.int8:
        return fills.normal(shape, dtype, generator)
    outliers = kind == "outliers"
    # in float16, where no level is lost: a cache may have a billion elements
    levels = fills.normal(shape, torch.float16, generator).mul_(_FEW if outliers else _SPREAD)
    if outliers:
        fills.plant_outliers(levels, 127.0, generator)
    return levels.round_().clamp_(-128.0, 127.0).to(dtype)


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
        value = 2.0 + 8.0 / math.sqrt(problem.head_dim)
        value = value if keys.dtype != torch.int8 else min(127.0, value / _SCALES[INT8][0])
        _set(keys, sequence, last if kind == "last_key" else first.clamp_min(0), value)
    elif kind == "constant":
        keys.copy_(keys[:, :1].clone().expand_as(keys))
    elif kind == "beyond":
        after = torch.arange(problem.kv_len, device=q.device) >= lengths[:, None]
        for cache in (keys, values):
            bits_of(cache)[after] = nan_bits(cache)
    elif kind == "nan":
        if keys.dtype == torch.int8:
            q[-1:, -1:, -1:, -1:] = math.nan
        else:
            bits_of(keys)[sequence[-1:], last[-1:], -1, -1] = nan_bits(keys)


def _set(cache: torch.Tensor, sequence: torch.Tensor, place: torch.Tensor, value: float) -> None:
    bits_of(cache)[sequence, place] = bits_of(torch.full((1,), value, device=cache.device).to(cache.dtype))
