"""rotary_embedding: torch's products and sums, and what Inductor makes of them."""

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


def rotate(
    positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, head_size: int, table: torch.Tensor, is_neox: bool
) -> None:
    """Rotate query and key in place, in the wider dtype of theirs and the table's."""
    # not table[positions], which waits for the device where positions have no dimension, and cannot be compiled
    cos, sin = torch.nn.functional.embedding(positions, table).unsqueeze(-2).chunk(2, -1)
    for x in (query, key):
        heads = x if x.dim() == positions.dim() + 2 else x.unflatten(-1, (x.shape[-1] // head_size, head_size))
        rotated = heads[..., : table.shape[1]]
        a, b = rotated.chunk(2, -1) if is_neox else (rotated[..., ::2], rotated[..., 1::2])
        first, second = a * cos - b * sin, b * cos + a * sin
        a.copy_(first)
        b.copy_(second)


class RotaryEmbedding(Native):
    """Rows of the table, four products, a sum and a difference, and copies into query and key."""

    op = "rotary_embedding"
    mixed = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run in place, for any layout and size."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            rotate(*arguments)

        return run


class CompiledRotaryEmbedding(InductorImplementation):
    """The products and sums in one pass over query and one over key."""

    op = "rotary_embedding"
    name = "torch.compile"
    mixed = True

    def function(self, *values: Any) -> tuple[torch.Tensor, ...]:
        """Takes positions, query, key, the size of a head, the table and the style; returns nothing."""
        rotate(*values)
        return ()
