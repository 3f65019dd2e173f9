"""The gradients through torch.compile: Inductor's kernels from torch's own operators."""

from __future__ import annotations

from typing import Any

import torch

from registry.backends.inductor import InductorImplementation

from .backward import rms_norm_gradients


class CompiledSquareBackward(InductorImplementation):
    """``grad_y * x * 2`` in one pass."""

    op = "square_backward"
    name = "torch.compile"

    def function(self, *values: Any) -> torch.Tensor:
        """Takes ``[...]`` and ``[...]``."""
        grad_y, x = values
        return torch.mul(grad_y, x) * 2


class CompiledGeluBackward(InductorImplementation):
    """``aten.gelu_backward``."""

    op = "gelu_backward"
    name = "torch.compile"

    def function(self, *values: Any) -> torch.Tensor:
        """Takes ``[...]``, ``[...]`` and the approximation's name."""
        grad_y, x, approximate = values
        grad_x: torch.Tensor = torch.ops.aten.gelu_backward(grad_y, x, approximate=approximate)
        return grad_x


class CompiledSoftmaxBackward(InductorImplementation):
    """``aten._softmax_backward_data``."""

    op = "softmax_backward"
    name = "torch.compile"

    def function(self, *values: Any) -> torch.Tensor:
        """Takes ``[...]``, ``[...]`` and the dimension."""
        grad_y, y, dim = values
        grad_x: torch.Tensor = torch.ops.aten._softmax_backward_data(grad_y, y, dim, y.dtype)
        return grad_x.contiguous()


class CompiledRmsNormBackward(InductorImplementation):
    """The formula; Inductor fuses it into a kernel over rows and one over columns."""

    op = "rms_norm_backward"
    name = "torch.compile"

    def function(self, *values: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes ``[..., cols]``, ``[..., cols]``, ``[cols]``, epsilon, and which of the two gradients are needed."""
        grad_y, x, weight, eps, need_x, need_weight = values
        return rms_norm_gradients(grad_y, x, weight, eps, need_x, need_weight)
