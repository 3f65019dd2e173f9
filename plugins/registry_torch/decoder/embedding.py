"""embedding and its gradient: torch's lookup, its sums by index, and Inductor's."""

from __future__ import annotations

from typing import Any

import torch

from registry.artifact import Built
from registry.backends.inductor import InductorImplementation
from registry.device import Device
from registry.implementation import Run, Tensors
from registry.problem import Problem
from registry.space import Config

from ..native import Native


def _summed(grad_y: torch.Tensor, indices: torch.Tensor, weight: torch.Tensor, padding_idx: int | None) -> torch.Tensor:
    """``[n, cols]``, summed in float32 or wider."""
    count, cols = weight.shape
    places, gradient = indices.reshape(-1), grad_y.reshape(-1, cols)
    total = torch.zeros((count, cols), dtype=torch.promote_types(grad_y.dtype, torch.float32), device=grad_y.device)
    total.index_add_(0, places, gradient.to(total.dtype))
    if padding_idx is not None:
        total[padding_idx] = 0.0
    return total.to(weight.dtype)


class Embedding(Native):
    """``torch.index_select`` into the output."""

    op = "embedding"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run, which writes through ``out=``."""

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            indices, weight, _ = arguments
            torch.index_select(weight, 0, indices.reshape(-1), out=outputs[0].view(-1, weight.shape[1]))

        return run


class CompiledEmbedding(InductorImplementation):
    """``torch.nn.functional.embedding``."""

    op = "embedding"
    name = "torch.compile"

    def function(self, *values: Any) -> torch.Tensor:
        """Takes ``[...]``, ``[n, cols]`` and the row of padding."""
        indices, weight, _ = values
        return torch.nn.functional.embedding(indices, weight)


class EmbeddingBackward(Native):
    """``index_add_`` in float32: with atomic additions on a GPU, whose order changes."""

    op = "embedding_backward"
    deterministic = False
    returns_outputs = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run for any layout and size."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> torch.Tensor:
            return _summed(*arguments)

        return run


class CompiledEmbeddingBackward(InductorImplementation):
    """The sums by index; Inductor adds atomically."""

    op = "embedding_backward"
    name = "torch.compile"
    deterministic = False

    def function(self, *values: Any) -> torch.Tensor:
        """Takes ``[..., cols]``, ``[...]``, ``[n, cols]`` and the row of padding."""
        return _summed(*values)
