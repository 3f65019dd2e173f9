"""Tensors of which several elements lie at one address, as in what ``torch.Tensor.expand`` returns."""

from __future__ import annotations

import torch

from .specs import strides_before


def expanded_dims(tensor: torch.Tensor) -> list[int]:
    """The dimensions along which all elements of a tensor lie at one address, of those with several elements."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return [dim for dim, (size, stride) in enumerate(steps) if stride == 0 and size > 1]


def without_repeats(tensor: torch.Tensor) -> torch.Tensor:
    """A view of each address of an expanded tensor once: several elements at one address cannot be written to."""
    for dim in expanded_dims(tensor):
        tensor = tensor.narrow(dim, 0, 1)
    return tensor


def strides_with_repeats(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides of a tensor that is row-major but for the dimensions along which the given one is expanded."""
    once, repeated = tuple(without_repeats(tensor).shape), expanded_dims(tensor)
    dense = strides_before(once[1:]) if once else ()
    return tuple(0 if dim in repeated else stride for dim, stride in enumerate(dense))
