"""rotary_kv_append: torch's products, sums and indexed copies, and what Inductor makes of them."""

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


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, is_neox: bool) -> torch.Tensor:
    """``x`` [batch, q_len, heads, head_dim] rotated, in the wider dtype of its own and the table's, row-major."""
    width = 2 * cos.shape[-1]
    part, rest = x[..., :width], x[..., width:]
    a, b = part.chunk(2, -1) if is_neox else (part[..., ::2], part[..., 1::2])
    first, second = a * cos - b * sin, b * cos + a * sin
    turned = torch.cat((first, second), -1) if is_neox else torch.stack((first, second), -1).flatten(-2)
    return torch.cat((turned.to(x.dtype), rest), -1)


def _append(*values: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Write to the caches, and return rotated queries and the new lengths; takes the schema's arguments in order."""
    query, key, value, table, k_cache, v_cache, lengths, positions, is_neox = values
    cos, sin = (table if positions is None else table[positions]).unsqueeze(-2).chunk(2, -1)
    batch, q_len = query.shape[:2]
    place = lengths[:, None] + torch.arange(q_len, device=lengths.device)
    sequence = torch.arange(batch, device=lengths.device)[:, None]
    k_cache[sequence, place] = _rotated(key, cos, sin, is_neox)
    v_cache[sequence, place] = value
    return _rotated(query, cos, sin, is_neox), (lengths + q_len).to(torch.int32)


class RotaryKvAppend(Native):
    """Rows of the table, products and sums, and an indexed copy into each cache."""

    op = "rotary_kv_append"
    mixed = True
    returns_outputs = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run for any layout and size."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> tuple[torch.Tensor, ...]:
            return _append(*arguments)

        return run


class CompiledRotaryKvAppend(InductorImplementation):
    """A pass over queries, one over keys and one over values."""

    op = "rotary_kv_append"
    name = "torch.compile"
    mixed = True

    def function(self, *values: Any) -> tuple[torch.Tensor, ...]:
        """Takes the schema's arguments in order; returns rotated queries and the new lengths."""
        return _append(*values)
