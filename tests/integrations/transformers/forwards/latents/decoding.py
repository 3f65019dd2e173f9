"""Decode steps of small models whose attention caches latents, and the calls of mla_decode in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...tiny_models import CONFIGS, LATENT, cache_name, prompt

FAMILIES = ("deepseek_v3", *LATENT)
WIDTH = CONFIGS["deepseek_v3"][1]["kv_lora_rank"] + CONFIGS["deepseek_v3"][1]["qk_rope_head_dim"]
PART = "one token over cached latents by mla_decode"
LAYERS = 2


def static(model: Any, length: int = 32) -> Any:
    """An empty StaticCache."""
    import transformers

    return transformers.StaticCache(config=model.config, max_cache_len=length)


def dynamic(model: Any) -> Any:
    """An empty DynamicCache."""
    import transformers

    return transformers.DynamicCache(config=model.config)


def filled(model: Any, cache: Any, mask: torch.Tensor | None = None, tokens: torch.Tensor | None = None) -> Any:
    """A cache after the prompt."""
    with torch.no_grad():
        model(prompt() if tokens is None else tokens, attention_mask=mask, **{cache_name(model): cache})
    return cache


def steps(
    model: Any,
    cache: Any,
    mask: torch.Tensor | None = None,
    *,
    count: int = 3,
    new: int = 1,
    first: int = 0,
    step: Any = None,
    device: str = "cpu",
) -> torch.Tensor:
    """Logits of ``count`` steps of ``new`` tokens, the first of them the prompt's token ``first``."""
    found, tokens = [], prompt().to(device)
    with torch.no_grad():
        for at in range(first, first + count):
            if mask is not None:
                mask = torch.cat((mask, mask.new_ones(len(mask), new)), 1)
            given = {"attention_mask": mask, cache_name(model): cache}
            found.append((model if step is None else step)(tokens[:, new * at : new * (at + 1)], **given).logits)
    return torch.cat(found, 1)


def padded() -> torch.Tensor:
    """A mask of the prompt whose first sequence is padded on its left."""
    mask = torch.ones_like(prompt())
    mask[0, :4] = 0
    return mask


@contextmanager
def decoded() -> Iterator[list[Any]]:
    """The problems of the calls of mla_decode: (shape of the cache, whether it has a table)."""
    from registry.integrations.transformers.forwards.latents import steps as module

    seen: list[Any] = []
    real: Any = vars(module)["call"]

    def call(op: str, q: torch.Tensor, cache: torch.Tensor, *given: Any) -> Any:
        seen.append((tuple(cache.shape), given[-1] is not None))
        return real(op, q, cache, *given)

    vars(module)["call"] = call
    try:
        yield seen
    finally:
        vars(module)["call"] = real
