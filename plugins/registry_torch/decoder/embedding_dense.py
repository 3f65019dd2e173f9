"""The gradient of an embedding as torch's own embedding computes it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from registry.artifact import Built
from registry.device import Device
from registry.implementation import Run, Tensors
from registry.problem import Problem
from registry.space import Config

from ..native import Native

_NO_PADDING = -1
_UNSORTED = 3072
"""The most rows that torch adds on a GPU without sorting them."""


class DenseEmbeddingBackward(Native):
    """``aten::embedding_dense_backward``: sorts the indices on a GPU, and adds halves of many rows in float32.

    The sort is not stable: rows of one index are added in another order at other addresses, as an H200 showed.
    """

    op = "embedding_backward"
    name = "torch.dense"
    returns_outputs = True
    deterministic = False

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        """Sums of halves that torch rounds on the way: on a CPU, and of few rows on a GPU, which it does not sort."""
        yield from super().unsupported(problem, device)
        if problem.torch_dtype.itemsize == 2 and (device.type == "cpu" or problem.rows <= _UNSORTED):
            yield f"{problem.dims['dtype']} of {problem.rows} rows on {device.type}: sums are rounded on the way"

    def preference(self, problem: Problem, device: Device) -> float:
        """On an H200 the second of those that take any number of rows; behind the others on a CPU."""
        return 1.5 if device.type == "cuda" else -1.0

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run for any layout and size."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> torch.Tensor:
            grad_y, indices, weight, padding = arguments
            count = weight.shape[0]
            place = _NO_PADDING if padding is None else padding % count
            return torch.ops.aten.embedding_dense_backward(grad_y, indices, count, place, False)  # type: ignore[no-any-return]

        return run
