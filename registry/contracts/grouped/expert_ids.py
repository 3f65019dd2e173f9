"""Experts of tokens, on the device: their distributions, drawing them at random, and their checks.

``topk_ids`` is ``[tokens, top_k]``. An id from 0 to ``experts - 1`` is an expert. Any other is no expert: -1, as vLLM
has it for an expert of another device, and ``experts``, as transformers has it, are the usual ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...problem import Problem
from ..checks import check_values
from .routing import rows_of_experts

NOBODY = -1
"""An id that is no expert."""

_LEAST_WITH_GAPS = 8


def tokens_of_experts(problem: Problem) -> list[int]:
    """The number of tokens of each expert: the problem's routing, where no token has one expert twice.

    They sum to ``tokens * top_k``. What an expert has more than there are tokens goes to the experts after it: with
    "one_expert" all tokens have the same ``top_k`` experts.
    """
    tokens, left = problem.tokens, 0
    found = []
    for count in rows_of_experts(tokens * problem.top_k, problem.experts, problem.routing):
        found.append(min(count + left, tokens))
        left += count - found[-1]
    return found


def busy(problem: Problem) -> int:
    """The number of experts that have tokens."""
    return sum(count > 0 for count in tokens_of_experts(problem))


def draw_ids(problem: Problem, generator: torch.Generator) -> torch.Tensor:
    """Random ids, int32 ``[tokens, top_k]``, the experts of a token distinct; experts and tokens in random order."""
    device, tokens, experts = generator.device, problem.tokens, problem.experts
    counts = torch.tensor(tokens_of_experts(problem), device=device)
    names = torch.randperm(experts, device=device, generator=generator).to(torch.int32)
    # no run of an expert is longer than the tokens, so that a token's places, ``tokens`` apart, are of distinct experts
    runs = names.repeat_interleave(counts, output_size=tokens * problem.top_k)
    of_tokens = runs.view(problem.top_k, tokens).T
    return of_tokens[torch.randperm(tokens, device=device, generator=generator)].contiguous()


def plant_nobody(ids: torch.Tensor, weights: torch.Tensor, x: torch.Tensor, experts: int) -> None:
    """Take experts from some tokens, and from some tokens all, in place; what must not be read then becomes NaN."""
    taken = torch.zeros_like(ids, dtype=torch.bool)
    taken[1::3, 0] = True
    ids[taken], weights[taken] = NOBODY, torch.nan
    if x.shape[0] >= _LEAST_WITH_GAPS:
        ids[3::8], weights[3::8], x[3::8] = experts, torch.nan, torch.nan


def check_ids_data(op: str, values: Mapping[str, Any]) -> None:
    """Raise OutOfRangeError for an id that is neither an expert nor -1 or ``experts``. Waits for the device."""
    ids, experts = values["topk_ids"], values["w13"].shape[0]
    check_values(
        op,
        "topk_ids",
        ids,
        (ids < NOBODY) | (ids > experts),
        f"0 to {experts - 1}, or {NOBODY} or {experts} for no expert",
        "the rows of w13 and w2 are the experts: were the ids counted for another model, or for all devices' experts?",
    )
