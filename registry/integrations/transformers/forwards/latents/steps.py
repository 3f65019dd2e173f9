"""Attention of one new token over latent vectors by mla_decode, without keys and values of each head.

Attention of DeepSeek's models caches a latent and a rotated part of the key for each token, and expands both for all
heads before each attention. A step stands between the two: it keeps the latents as they are until the attention
function has queries and a mask. Of one new token the projection of keys is then multiplied into the query, and that of
values into the output. Source: DeepSeek-AI, "DeepSeek-V2" (2024), 2.1.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from .....api import call
from .....dispatch.torch_side.states import gradient_needed
from .masks import SeenLatents, seen_latents
from .projections import LatentPair, LatentSizes, pays, projection


class LatentStep:
    """One attention's latents, until its attention function is called."""

    def __init__(self, module: Any, sizes: LatentSizes, cached: Any) -> None:
        self.module, self._sizes, self._cached = module, sizes, cached
        self._held: LatentPair | None = None

    def hold(self, latent: torch.Tensor, rotated: torch.Tensor) -> LatentPair:
        """Latents in the place of keys and values, as they are."""
        self._held = latent, rotated
        return self._held

    def expanded(self, key: torch.Tensor, value: torch.Tensor) -> LatentPair:
        """Keys and values of all heads, by the module's own code where ``key`` and ``value`` are the latents."""
        if not self._holds(key, value):
            return key, value
        self._held = None
        pair: LatentPair = type(self.module).registry_class.expand_kv(self.module, key, value)
        return pair

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scaling: float | None,
    ) -> torch.Tensor | None:
        """Attention [batch, 1, heads, width] of one token over the latents ``key`` and ``value`` that ``mask`` shows.

        ``mask`` is that of ``registry_attention``, ``scaling`` None for attention of a form that mla_decode has not.
        None if keys and values are to be expanded for it: of such a form, for several tokens, with gradients, under
        autocast, under a mask that adds to logits, or where an adapter or another layer is in the projection's place.
        """
        if scaling is None or not self._holds(key, value):
            return None
        layer = self.module.kv_b_proj
        if query.shape[2] != 1 or key.shape[1] != 1 or not pays(layer, key.shape[0] * key.shape[2]):
            return None
        given = query, key, value
        alike = all(one.dtype is query.dtype and one.device == query.device for one in given)
        if not alike or gradient_needed(given) or torch.is_autocast_enabled(query.device.type):
            return None
        weight, seen = projection(layer, query), seen_latents(mask, key)
        if weight is None or seen is None:
            return None
        rows = self._rows(key, value)
        return self._attended(query.squeeze(2), rows.squeeze(1), seen, weight, scaling)

    def _rows(self, latent: torch.Tensor, rotated: torch.Tensor) -> torch.Tensor:
        """Latents and rotated parts side by side: the cache's memory, or a copy if the cache has returned a part."""
        own = None if self._cached is None else self._cached.rows
        return torch.cat((latent, rotated), -1) if own is None or own.shape[:3] != latent.shape[:3] else own

    def _holds(self, key: torch.Tensor, value: torch.Tensor) -> bool:
        return self._held is not None and key is self._held[0] and value is self._held[1]

    def _attended(
        self, query: torch.Tensor, cache: torch.Tensor, seen: SeenLatents, weight: torch.Tensor, scale: float
    ) -> torch.Tensor:
        of_keys, of_values = self._sizes.parts(weight)
        nope, rank = self._sizes.nope, self._sizes.kv_lora_rank
        absorbed = torch.bmm(query[..., :nope].transpose(0, 1), of_keys).transpose(0, 1)
        q = torch.cat((absorbed, query[..., nope:]), -1)
        pages = cache if seen.table is None else cache.reshape(-1, 1, cache.shape[-1])
        out, _ = call("mla_decode", q, pages, seen.lengths, rank, scale, seen.table)
        return torch.bmm(out.transpose(0, 1), of_values.transpose(1, 2)).transpose(0, 1).unsqueeze(1)


class LatentProbe:
    """A stand-in for a step and a cache, which notes what these and attention get, and returns latents as they are."""

    def __init__(self, sizes: LatentSizes) -> None:
        self._sizes = sizes
        self.updated: list[tuple[Any, ...]] = []
        self.held: list[LatentPair] = []
        self.attended: list[tuple[torch.Tensor, ...]] = []

    def update(self, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> LatentPair:
        self.updated.append((key, value, args[0] if args else kwargs.get("layer_idx")))
        return key, value

    def get_seq_length(self, *_: Any) -> int:
        return 0

    def hold(self, latent: torch.Tensor, rotated: torch.Tensor) -> LatentPair:
        self.held.append((latent, rotated))
        return latent, rotated

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _: Any, scaling: float | None
    ) -> torch.Tensor:
        if scaling is not None:
            self.attended.append((query, key, value))
        batch, heads, q_len = query.shape[:3]
        return query.new_zeros(batch, q_len, heads, self._sizes.value)

    def expanded(self, key: torch.Tensor, value: torch.Tensor) -> LatentPair:
        return key, value

    def proves(self, index: int) -> bool:
        """Whether what the cache's layer ``index`` returned was handed on to attention, with fitting queries."""
        if not len(self.updated) == len(self.held) == len(self.attended) == 1:
            return False
        (key, value, layer), held, (query, *attended) = self.updated[0], self.held[0], self.attended[0]
        widths = query.shape[-1], key.shape[-1], value.shape[-1]
        expected = self._sizes.nope + self._sizes.rope, self._sizes.kv_lora_rank, self._sizes.rope
        same = held[0] is attended[0] is key and held[1] is attended[1] is value
        return same and layer == index and widths == expected and key.shape[1] == value.shape[1] == 1


class LatentSteps(threading.local):
    """``step``: of the attention that runs in this thread, and None outside."""

    def __init__(self) -> None:
        # for each thread, so that torch.compile never sees this attribute come into being
        self.step: LatentStep | LatentProbe | None = None


LATENTS = LatentSteps()
"""What the forward of each thread knows."""
