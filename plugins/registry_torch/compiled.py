"""Every op through torch.compile: what Inductor makes of the obvious torch code."""

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
        """``[...]`` and ``[...]``."""
        x, y = values
        return torch.add(x, y)


class CompiledSquare(InductorImplementation):
    """``x * x``."""

    op = "square"
    name = "torch.compile"

    def function(self, *values: Any) -> torch.Tensor:
        """``[...]``."""
        (x,) = values
        return torch.mul(x, x)


class CompiledGelu(InductorImplementation):
    """``torch.nn.functional.gelu``."""

    op = "gelu"
    name = "torch.compile"

    def function(self, *values: Any) -> torch.Tensor:
        """``[...]`` and the approximation's name."""
        x, approximate = values
        return torch.nn.functional.gelu(x, approximate=approximate)


class CompiledSoftmax(InductorImplementation):
    """``torch.softmax``."""

    op = "softmax"
    name = "torch.compile"

    def function(self, *values: Any) -> torch.Tensor:
        """``[...]`` and the dimension."""
        x, dim = values
        return torch.softmax(x, dim).contiguous()


class CompiledRmsNorm(InductorImplementation):
    """``torch.nn.functional.rms_norm``."""

    op = "rms_norm"
    name = "torch.compile"

    def function(self, *values: Any) -> torch.Tensor:
        """``[..., cols]``, ``[cols]`` and epsilon."""
        x, weight, eps = values
        return torch.nn.functional.rms_norm(x, weight.shape, weight, eps).contiguous()


class CompiledGemmInt4(InductorImplementation):
    """Dequantise and multiply: one fused kernel makes the weight, the library's multiplies."""

    op = "gemm_int4"
    name = "torch.compile"

    def function(self, *values: Any) -> torch.Tensor:
        """``[..., K]`` and the packed weight's parts."""
        a: torch.Tensor = values[0]
        _, qweight, scales, zeros, _, group_size, k, _ = values
        weight = dequantized(qweight, scales, zeros, group_size)
        product = a.reshape(-1, k) @ weight
        return product.reshape(*a.shape[:-1], weight.shape[1]).contiguous()
