"""Every op through torch.compile: Inductor's kernels from plain torch code."""

from __future__ import annotations

from typing import Any

import torch

from registry.backends.inductor import InductorImplementation

from .int4 import dequantized


class CompiledVectorAdd(InductorImplementation):
    """``x + y``."""

    op = "vector_add"
    name = "torch.compile"

    def function(self, *values: Any) -> torch.Tensor:
        """Takes ``[...]`` and ``[...]``."""
        x, y = values
        return torch.add(x, y)


class CompiledSquare(InductorImplementation):
    """``x * x``."""

    op = "square"
    name = "torch.compile"

    def function(self, *values: Any) -> torch.Tensor:
        """Takes ``[...]``."""
        (x,) = values
        return torch.mul(x, x)


class CompiledGelu(InductorImplementation):
    """``torch.nn.functional.gelu``."""

    op = "gelu"
    name = "torch.compile"

    def function(self, *values: Any) -> torch.Tensor:
        """Takes ``[...]`` and the approximation's name."""
        x, approximate = values
        return torch.nn.functional.gelu(x, approximate=approximate)


class CompiledSoftmax(InductorImplementation):
    """``torch.softmax``."""

    op = "softmax"
    name = "torch.compile"

    def function(self, *values: Any) -> torch.Tensor:
        """Takes ``[...]`` and the dimension."""
        x, dim = values
        return torch.softmax(x, dim).contiguous()


class CompiledRmsNorm(InductorImplementation):
    """``torch.nn.functional.rms_norm``."""

    op = "rms_norm"
    name = "torch.compile"

    def function(self, *values: Any) -> torch.Tensor:
        """Takes ``[..., cols]``, ``[cols]`` and epsilon."""
        x, weight, eps = values
        return torch.nn.functional.rms_norm(x, weight.shape, weight, eps).contiguous()


class CompiledGemmInt4(InductorImplementation):
    """Dequantise and multiply: one fused kernel makes the weight, the library's multiplies."""

    op = "gemm_int4"
    name = "torch.compile"

    def function(self, *values: Any) -> torch.Tensor:
        """Takes ``[..., K]`` and the packed weight's parts."""
        a: torch.Tensor = values[0]
        _, qweight, scales, zeros, _, group_size, k, _ = values
        weight = dequantized(qweight, scales, zeros, group_size)
        product = a.reshape(-1, k) @ weight
        return product.reshape(*a.shape[:-1], weight.shape[1]).contiguous()
