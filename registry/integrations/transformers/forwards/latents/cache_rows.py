"""Static caches whose latents and rotated parts lie side by side in memory, as mla_decode reads them.

transformers keeps them as keys and values, in two tensors: to join these at each token would read and write a whole
cache, also what is not filled yet.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import StaticLayer

from ..cache_appends import filled_layer


class LatentRows(StaticLayer):  # type: ignore[misc]
    """A static cache's layer with ``rows`` [batch, 1, max_cache_len, width]; its keys and values are parts of them.

    Where something puts other tensors in their place, as an offloaded cache does, it is a layer with two tensors again.
    """

    rows: torch.Tensor
    rank: int

    @property
    def keys(self) -> torch.Tensor:
        """Latents [batch, 1, max_cache_len, kv_lora_rank]."""
        return self.rows[..., : self.rank]

    @keys.setter
    def keys(self, tensor: torch.Tensor) -> None:
        self._part()
        self.keys = tensor

    @property
    def values(self) -> torch.Tensor:
        """Rotated parts [batch, 1, max_cache_len, rope_dim]."""
        return self.rows[..., self.rank :]

    @values.setter
    def values(self, tensor: torch.Tensor) -> None:
        self._part()
        self.values = tensor

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append latents and rotated parts, and return all there is room for."""
        new = torch.cat((key_states, value_states), -1)
        place = torch.arange(new.shape[2], device=new.device) + self.cumulative_length
        self.cumulative_length.add_(new.shape[2])
        self.rows.index_copy_(2, place, new)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Sequences in another order, for beam search."""
        self.rows = self.rows.index_select(0, beam_idx.to(self.rows.device))

    def _part(self) -> None:
        keys, values = self.keys.contiguous(), self.values.contiguous()
        del self.rows
        self.__class__ = StaticLayer
        self.keys, self.values = keys, values


def rows_of(cache: Any, index: Any) -> LatentRows | None:
    """The layer of a cache, if its latents and rotated parts lie side by side."""
    held = _layer(cache, index)
    return held if isinstance(held, LatentRows) else None


def is_empty(cache: Any, index: Any) -> bool:
    """Whether the layer of a static cache has no memory yet."""
    held = _layer(cache, index)
    return type(held) is StaticLayer and not held.is_initialized


def join_rows(cache: Any, index: Any) -> None:
    """Let the latents and rotated parts of a static cache's layer lie side by side.

    Just after the layer got its memory: nothing else knows where that is, as a CUDA graph might later. A cache that is
    offloaded is left, and so is one within a program or a CUDA graph, or of tensors with gradients.
    """
    held = filled_layer(cache, index)
    if held is None or getattr(cache, "offloading", False) or not _joins(held.keys, held.values):
        return
    rank = held.keys.shape[-1]
    rows = torch.cat((held.keys, held.values), -1)
    torch._dynamo.mark_static_address(rows)
    del held.keys, held.values
    held.__class__ = LatentRows
    held.rows, held.rank = rows, rank


def _layer(cache: Any, index: Any) -> Any:
    layers = getattr(cache, "layers", ())
    return layers[index] if isinstance(index, int) and 0 <= index < len(layers) else None


def _joins(keys: torch.Tensor, values: torch.Tensor) -> bool:
    if keys.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return False
    alike = keys.shape[:3] == values.shape[:3] and keys.dtype is values.dtype and keys.device.type in {"cpu", "cuda"}
    return alike and not (keys.requires_grad or values.requires_grad)
