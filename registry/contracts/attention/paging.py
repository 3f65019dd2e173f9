"""Random caches in pages: tables, and contents that no key may be read from."""

from __future__ import annotations

import math

import torch

from ...problem import Problem

_WILD = (-1, 2**30)


def nan_bits(cache: torch.Tensor) -> torch.Tensor:
    """One NaN in the dtype of the cache, of float8 its byte; the greatest level of int8, which has no NaN."""
    if cache.dtype == torch.int8:
        return torch.full((1,), 127, dtype=torch.uint8, device=cache.device)[0]
    return bits_of(torch.full((1,), math.nan, device=cache.device).to(cache.dtype))[0]


def bits_of(cache: torch.Tensor) -> torch.Tensor:
    """The tensor itself; one of a byte an element as bytes, since no device indexes float8."""
    return cache.view(torch.uint8) if cache.dtype.itemsize == 1 else cache


def page_table(problem: Problem, lengths: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Pages of each sequence, int32 ``[batch, kv_len / page]``, in random order; the cache has one page more."""
    if not problem.page:
        return lengths
    pages = problem.kv_len // problem.page
    order = torch.randperm(problem.batch * pages + 1, device=lengths.device, generator=generator)
    return order[:-1].view(problem.batch, pages).to(torch.int32)


def paged(tokens: torch.Tensor, problem: Problem, table: torch.Tensor) -> torch.Tensor:
    """``[batch, kv_len, ...]`` as ``[pages, page, ...]``, each page where the table says; NaN in that of nobody."""
    pages = tokens.view(table.numel(), problem.page, *tokens.shape[2:])
    made = torch.empty((table.numel() + 1, *pages.shape[1:]), dtype=tokens.dtype, device=tokens.device)
    bits_of(made).copy_(nan_bits(made).expand(made.shape))
    bits_of(made)[table.flatten().long()] = bits_of(pages)
    return made


def wild_beyond(table: torch.Tensor, problem: Problem, lengths: torch.Tensor) -> torch.Tensor:
    """The table with numbers of no page behind the pages that a sequence has begun."""
    page = torch.arange(table.shape[1], device=table.device)
    wild = torch.where(page % 2 > 0, *_WILD).to(torch.int32)
    return torch.where(page * problem.page < lengths[:, None], table, wild)
