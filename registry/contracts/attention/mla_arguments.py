"""Arguments of mla_decode: their checks, their dimensions, and random ones of every kind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ...errors import InvalidArgumentError
from ...problem import Arguments, Problem, Value, dtype_name
from ...tracing import refuse
from .. import fills
from ..checks import float_dtype, float_tensor, positive, same_dtype, shape_text
from ..segments import check_number_of
from .cache_checks import cache_room, check_page, check_places
from .decode_lengths import draw_lengths, draw_short
from .paging import nan_bits, page_table, paged, wild_beyond

KINDS = ("normal", "outliers", "last_key", "first_key", "constant", "beyond", "nan")
"""Kinds of inputs, as attention_decode's of these names."""

_SCALE_WIDTH = 192
"""Elements of DeepSeek's heads before absorption, which the scale of the inputs is of."""


def mla_problem(arguments: Arguments) -> Mapping[str, Value]:
    """The dimensions of a call. Raises InvalidArgumentError for tensors that do not go together."""
    op, q, cache = arguments.op, float_tensor(arguments, "q"), arguments.tensor("kv_cache")
    if len(q.shape) != 3 or len(cache.shape) != 3 or not q.shape[1] or not cache.shape[1]:
        raise InvalidArgumentError(
            f"{op}: q is {shape_text(q.shape)} and kv_cache is {shape_text(cache.shape)}",
            hint="expected q [batch, heads, kv_lora_rank + rope_dim] and a cache [batch, kv_len, kv_lora_rank +"
            " rope_dim], or [blocks, page, kv_lora_rank + rope_dim] with a block_table",
        )
    batch, heads, width = q.shape
    if cache.shape[2] != width:
        raise InvalidArgumentError(
            f"{op}: a row of q has {width} elements but one of kv_cache has {cache.shape[2]}",
            hint="both are a latent of kv_lora_rank elements and a rotated part: torch.cat([q_nope, q_pe], -1)",
        )
    same_dtype(op, ("q", q), ("kv_cache", cache))
    rank, scale = arguments.integer("kv_lora_rank"), arguments.number("scale")
    if not 1 <= rank < width:
        raise InvalidArgumentError(
            f"{op}: kv_lora_rank={rank} but a row of kv_cache has {width} elements",
            hint=f"expected 1 to {width - 1}: the rotated part follows the latent",
        )
    if not math.isfinite(scale):
        refuse(f"{op}: scale={scale}", hint="expected a finite number, e.g. 192 ** -0.5 for DeepSeek-V3's heads")
    page, kv_len = cache_room(arguments, batch, "kv_cache", "kv_lora_rank + rope_dim")
    return {
        "batch": batch,
        "heads": heads,
        "kv_len": kv_len,
        "kv_lora_rank": rank,
        "rope_dim": width - rank,
        "page": page,
        "dtype": dtype_name(q.dtype),
    }


def check_mla(problem: Problem) -> None:
    """Raise InvalidArgumentError for dimensions that no call has."""
    positive(problem, "batch", "heads", "kv_len", "kv_lora_rank", "rope_dim")
    check_number_of(problem, "batch")
    float_dtype(problem)
    check_page(problem)


def check_mla_data(values: Mapping[str, Any]) -> None:
    """Raise OutOfRangeError for a length beyond the room of its sequence, and for a page that the cache lacks."""
    check_places("mla_decode", values["kv_cache"], values["kv_lens"], values["block_table"])


def mla_inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    """The schema's arguments in order."""
    lengths = (draw_short if kind == "beyond" else draw_lengths)(problem, generator)
    width = problem.kv_lora_rank + problem.rope_dim
    q = fills.normal((problem.batch, problem.heads, width), problem.torch_dtype, generator)
    cache = fills.normal((problem.batch, problem.kv_len, width), problem.torch_dtype, generator)
    _shape(kind, problem, q, cache, lengths, generator)
    table = page_table(problem, lengths, generator)
    if problem.page:
        cache = paged(cache, problem, table)
        table = wild_beyond(table, problem, lengths) if kind == "beyond" else table
    scale = _SCALE_WIDTH**-0.5 if width > _SCALE_WIDTH else width**-0.5
    return q, cache, lengths, problem.kv_lora_rank, scale, table if problem.page else None


def _shape(
    kind: str,
    problem: Problem,
    q: torch.Tensor,
    cache: torch.Tensor,
    lengths: torch.Tensor,
    generator: torch.Generator,
) -> None:
    """Change queries and cache, in place, to those of the kind."""
    sequence = torch.arange(problem.batch, device=q.device)
    last = (lengths.long() - 1).clamp_min(0)
    if kind == "outliers":
        fills.plant_outliers(q, 12.0, generator)
    elif kind in ("last_key", "first_key"):
        # a logit of several sqrt(width) above all others, for every head: queries are positive
        q.abs_().add_(0.5)
        place = last if kind == "last_key" else torch.zeros_like(last)
        cache[sequence, place] = 2.0 + 8.0 / math.sqrt(cache.shape[2])
    elif kind == "constant":
        cache.copy_(cache[:, :1].clone().expand_as(cache))
    elif kind == "beyond":
        cache[torch.arange(problem.kv_len, device=q.device) >= lengths[:, None]] = nan_bits(cache)
    elif kind == "nan":
        cache[sequence[-1:], last[-1:], -1] = nan_bits(cache)
