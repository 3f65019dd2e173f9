"""FlashInfer's rotary embedding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from registry import Config, Device, Problem
from registry.artifact import Built
from registry.implementation import Run, Tensors

from .adapting import WithPrepared, compiled_reasons, library

_ELEMENTS = 8
"""A thread rotates 16 bytes of a head."""


class FlashInferRotary(WithPrepared):
    """``apply_rope_with_cos_sin_cache_inplace``, which takes the table of cosines and sines in float32."""

    op = "rotary_embedding"
    name = "flashinfer.rotary_embedding"
    mixed = True

    def reasons(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from compiled_reasons(problem, device)
        if not problem.kv_heads:
            yield "it rotates queries and keys, and there are no keys"
        if problem.head_dim % _ELEMENTS or problem.rotary_dim % (2 * _ELEMENTS):
            yield (
                f"head_dim is {problem.head_dim} and rotary_dim {problem.rotary_dim},"
                f" expected multiples of {_ELEMENTS} and {2 * _ELEMENTS}"
            )

    def prepared(self, problem: Problem, config: Config) -> Mapping[str, tuple[str, ...]]:
        return {"table_in_float32": ("cos_sin_cache",)}

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        found: torch.Tensor = values[0].to(torch.float32, copy=True)
        return found

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            positions, query, key, head_size, _, is_neox, table = arguments
            tokens = positions.numel()
            library().apply_rope_with_cos_sin_cache_inplace(
                positions.view(tokens), query.view(tokens, -1), key.view(tokens, -1), head_size, table, is_neox
            )

        return run
