"""FlashAttention's forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from registry import Device, Problem

from .generations import (
    FA2,
    FA3,
    FA4,
    Generation,
    flash_attn,
    general_reasons,
    library,
    mask_reasons,
    split_reasons,
    window_of,
)  # fmt: skip


def forward_reasons(generation: Generation, problem: Problem, device: Device) -> Iterator[str]:
    """Why a generation cannot run an ``attention``."""
    yield from general_reasons(generation, problem, device)
    yield from mask_reasons(problem)
    if generation is FA2 and problem.q_len > problem.kv_len and (problem.causal or problem.span):
        yield "some queries see no key, of which it returns the log-sum-exp inf, not -inf"


def split_forward_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why the fourth generation cannot run an ``attention`` with keys that it splits over programs."""
    yield from forward_reasons(FA4, problem, device)
    yield from split_reasons(device)


def attention_fa4(
    splits: int,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    _mask: None,
    causal: bool,
    scale: float | None,
    softcap: float,
    window: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The fourth generation's ``flash_attn_func``; it chooses how it splits keys where ``splits`` is 0."""
    found: tuple[torch.Tensor, torch.Tensor] = library(FA4).flash_attn_func(
        q, k, v, softmax_scale=scale, causal=causal, window_size=window_of(FA4, window, causal), softcap=softcap,
        num_splits=splits, return_lse=True,
    )  # fmt: skip
    return found


def attention_earlier(
    generation: Generation,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    _mask: None,
    causal: bool,
    scale: float | None,
    softcap: float,
    window: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``flash_attn_func`` of the second and the third generation."""
    out, lse, *_ = library(generation).flash_attn_func(
        q, k, v, softmax_scale=scale, causal=causal, window_size=window_of(generation, window, causal),
        softcap=softcap, return_attn_probs=True,
    )  # fmt: skip
    return out, lse


IMPLEMENTATIONS = (
    flash_attn("attention", FA4, partial(attention_fa4, 1), partial(forward_reasons, FA4)),
    flash_attn("attention", FA4, partial(attention_fa4, 0), split_forward_reasons, variant="_split"),
    flash_attn("attention", FA3, partial(attention_earlier, FA3), partial(forward_reasons, FA3)),
    flash_attn("attention", FA2, partial(attention_earlier, FA2), partial(forward_reasons, FA2)),
)
