"""Dense layers that can be packed: those of the class nn.Linear, and of Conv1D, GPT-2's linear layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias, cast

import torch
from transformers.pytorch_utils import Conv1D

from ..swapping import own_class

DenseLayer: TypeAlias = torch.nn.Linear | Conv1D


def linear_layers(model: torch.nn.Module) -> Iterator[tuple[str, DenseLayer]]:
    """Names and layers of the classes nn.Linear and Conv1D themselves, also where ``apply`` has swapped them.

    A subclass may use its weight otherwise than by ``forward``.
    """
    for name, module in model.named_modules():
        if own_class(module) in (torch.nn.Linear, Conv1D):
            yield name, cast("DenseLayer", module)


def matrix(layer: DenseLayer, weight: torch.Tensor | None = None) -> torch.Tensor:
    """The layer's weight ``[N, K]``, or ``weight`` in its place; Conv1D holds ``[K, N]``."""
    given = layer.weight if weight is None else weight
    return given.detach().T.contiguous() if isinstance(layer, Conv1D) else given


def shape_of(layer: DenseLayer) -> tuple[int, int]:
    """``(N, K)``: outputs and inputs of the layer."""
    if isinstance(layer, Conv1D):
        return int(layer.nf), int(layer.nx)
    return layer.out_features, layer.in_features


def dense_layer(weight: torch.Tensor, bias: torch.nn.Parameter | None, *, conv1d: bool) -> DenseLayer:
    """A layer of a weight ``[N, K]`` and a bias: nn.Linear, or Conv1D with the weight transposed."""
    n, k = weight.shape
    with torch.device("meta"):
        layer = Conv1D(n, k) if conv1d else torch.nn.Linear(k, n, bias is not None)
    layer.weight = torch.nn.Parameter(weight.T.contiguous() if conv1d else weight)
    layer.register_parameter("bias", bias)
    return layer
