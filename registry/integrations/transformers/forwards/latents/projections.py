"""The layer that expands latents into keys and values of all heads: its widths, and its weight as a matrix."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .....nn import PackedLinear, ScaledLinear
from ...swapping import has_hooks
from ..linears import LinearForward, is_bare

LatentPair = tuple[torch.Tensor, torch.Tensor]


class LatentSizes(NamedTuple):
    """The widths of a latent, of the key's part that is not rotated and the one that is, and of a head's values."""

    kv_lora_rank: int
    nope: int
    rope: int
    value: int

    def parts(self, weight: torch.Tensor) -> LatentPair:
        """Views of the layer's weight: the projections of keys and values [heads, width, kv_lora_rank]."""
        heads = weight.view(-1, self.nope + self.value, self.kv_lora_rank)
        return heads[:, : self.nope], heads[:, self.nope :]

    def expanded(self, weight: torch.Tensor, latent: torch.Tensor, rotated: torch.Tensor) -> LatentPair:
        """Keys and values [batch, heads, tokens, width] for latents and rotated parts [batch, 1, tokens, width]."""
        of_keys, of_values = self.parts(weight)
        keys = latent @ of_keys.transpose(1, 2)
        rotated = rotated.expand(-1, keys.shape[1], -1, -1)
        return torch.cat((keys, rotated), -1), latent @ of_values.transpose(1, 2)


def is_linear(layer: object) -> bool:
    """Whether a layer is the product with a weight whose matrix ``projection`` returns."""
    return isinstance(layer, LinearForward | PackedLinear | ScaledLinear) and layer.bias is None


def pays(layer: torch.nn.Module, latents: int) -> bool:
    """Whether attention over so many latents takes less than expanding them.

    To write out a packed or scaled weight takes what expanding about as many latents as it has columns takes.
    """
    return not isinstance(layer, PackedLinear | ScaledLinear) or latents > layer.in_features


def projection(layer: Any, like: torch.Tensor) -> torch.Tensor | None:
    """The weight [heads * width, kv_lora_rank] of a layer in the dtype of activations ``like``.

    None for a layer that computes something else now, as with an adapter or hooks, for a weight of another dtype or
    device, and for one that learns. A packed weight is multiplied by the unit matrix, each time: nothing is kept, which
    would take as much memory as the weight had before, and might be stale.
    """
    if isinstance(layer, LinearForward):
        weight: torch.Tensor = layer.weight
        fits = is_bare(layer) and weight.dtype is like.dtype and weight.device == like.device
        return weight if fits and not (torch.is_grad_enabled() and weight.requires_grad) else None
    known = isinstance(layer, PackedLinear | ScaledLinear) and not has_hooks(layer)
    if not known or layer.weight.device != like.device:
        return None
    if isinstance(layer, ScaledLinear):
        return layer.dequantize(like.dtype)
    if layer.weight.dtype is not like.dtype:
        return None
    unit = torch.eye(layer.in_features, dtype=like.dtype, device=like.device)
    product: torch.Tensor = layer(unit)
    return product.T
