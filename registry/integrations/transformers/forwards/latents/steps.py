"""Attention of one new token over latent vectors by mla_decode, without keys and values of each head.

Attention of DeepSeek's models caches a latent and a rotated part of the key for each token, and expands both for all
heads before each attention. A step stands between the two: it keeps the latents as they are until the attention
function has queries and a mask. Of one new token the projection of keys is then multiplied into the query, and that of
values into the output. Source: DeepSeek-AI, "DeepSeek-V2" (2024), 2.1.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import torch

from .....api import call
from .....dispatch.torch_side.states import gradient_needed
from .masks import seen_latents
from ..linears import is_bare

Pair = tuple[torch.Tensor, torch.Tensor]


class LatentSizes(NamedTuple):
    """The widths of a latent, of the key's part that is not rotated and the one that is, and of a head's values."""

    kv_lora_rank: int
    nope: int
    rope: int
    value: int

    def parts(self, weight: torch.Tensor) -> Pair:
        """Views of kv_b_proj's weight: the projections of keys and values [heads, width, kv_lora_rank]."""
        heads = weight.view(-1, self.nope + self.value, self.kv_lora_rank)
        return heads[:, : self.nope], heads[:, self.nope :]

    def expanded(self, weight: torch.Tensor, latent: torch.Tensor, rotated: torch.Tensor) -> Pair:
        """Keys and values of all heads for latents [batch, 1, tokens, width], in the order that a step assumes."""
        of_keys, of_values = self.parts(weight)
        keys = latent @ of_keys.transpose(1, 2)
        rotated = rotated.expand(-1, keys.shape[1], -1, -1)
        return torch.cat((keys, rotated), -1), latent @ of_values.transpose(1, 2)


class LatentStep:
    """One attention's latents, until its attention function is called."""

    def __init__(self, module: Any, sizes: LatentSizes) -> None:
        self.module, self._sizes = module, sizes
        self._held: Pair | None = None

    def hold(self, latent: torch.Tensor, rotated: torch.Tensor) -> Pair:
        """Latents in the place of keys and values, as they are."""
        self._held = latent, rotated
        return self._held

    def holds(self, key: torch.Tensor, value: torch.Tensor) -> bool:
        """Whether keys and values are the latents that wait."""
        return self._held is not None and key is self._held[0] and value is self._held[1]

    def expanded(self) -> Pair:
        """Keys and values of all heads, by the module's own code."""
        assert self._held is not None
        held, self._held = self._held, None
        expanded: Pair = type(self.module).registry_class.expand_kv(self.module, *held)
        return expanded

    def attend(self, query: torch.Tensor, mask: torch.Tensor | None, scaling: float | None) -> torch.Tensor | None:
        """Attention [batch, 1, heads, value] of one token over the latents that ``mask`` shows.

        ``mask`` is that of ``registry_attention``. None if keys and values are to be expanded for it: for several
        tokens, with gradients, under autocast, under a mask that adds to logits, or where an adapter or another layer
        is in the place of the projection.
        """
        assert self._held is not None
        latent, rotated = self._held
        layer = self.module.kv_b_proj
        if query.shape[2] != 1 or latent.shape[1] != 1 or not is_bare(layer):
            return None
        weight: torch.Tensor = layer.weight
        given = (query, latent, rotated, weight)
        alike = all(one.dtype is query.dtype and one.device == query.device for one in given)
        if not alike or gradient_needed(given) or torch.is_autocast_enabled(query.device.type):
            return None
        seen = seen_latents(mask, latent)
        if seen is None:
            return None
        of_keys, of_values = self._sizes.parts(weight)
        nope = self._sizes.nope
        absorbed = torch.bmm(query[:, :, 0, :nope].transpose(0, 1), of_keys).transpose(0, 1)
        q = torch.cat((absorbed, query[:, :, 0, nope:]), -1)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        cache = torch.cat((latent, rotated), -1).squeeze(1)
        if seen.table is not None:
            cache = cache.view(-1, 1, cache.shape[-1])
        out, _ = call("mla_decode", q, cache, seen.lengths, self._sizes.kv_lora_rank, scale, seen.table)
        return torch.bmm(out.transpose(0, 1), of_values.transpose(1, 2)).transpose(0, 1).unsqueeze(1)


class LatentProbe:
    """In the place of a step: it notes whether attention gets what stands for keys and values as it is."""

    def __init__(self, sizes: LatentSizes) -> None:
        self._sizes = sizes
        self.held: list[Pair] = []
        self.attended: list[tuple[torch.Tensor, ...]] = []

    def hold(self, latent: torch.Tensor, rotated: torch.Tensor) -> Pair:
        self.held.append((latent, rotated))
        return latent, rotated

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        self.attended.append((query, key, value))
        batch, heads, q_len, _ = query.shape
        return query.new_zeros(batch, q_len, heads, self._sizes.value)

    @property
    def proves(self) -> bool:
        """Whether latents of one head were handed on, once, with queries as wide as expanded keys."""
        if not len(self.held) == len(self.attended) == 1:
            return False
        (latent, rotated), (query, key, value) = self.held[0], self.attended[0]
        widths = query.shape[-1], latent.shape[-1], rotated.shape[-1]
        expected = self._sizes.nope + self._sizes.rope, self._sizes.kv_lora_rank, self._sizes.rope
        return key is latent and value is rotated and widths == expected and latent.shape[1] == rotated.shape[1] == 1


class LatentSteps(threading.local):
    """``step``: of the attention that runs in this thread, and None outside."""

    def __init__(self) -> None:
        # for each thread, so that torch.compile never sees this attribute come into being
        self.step: LatentStep | LatentProbe | None = None


LATENTS = LatentSteps()
"""What the forward of each thread knows."""
