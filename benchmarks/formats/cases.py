"""A linear layer in each format: a call of its op, and what exact arithmetic makes of the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

import registry
from registry import PackedWeight
from registry.nn import ActOrderLinear
from registry.packed import dequantized, pack

KINDS = ("normal", "outliers")
OUTLIER = 60.0
"""How many times as large as the others the activations of one column in 128 are, as in language models."""


@dataclass(frozen=True)
class Case:
    """One call of an op.

    given     the op's arguments as a user gives them
    weight    what the op's weight stands for, float64 ``[n, k]``
    rounded   what its activations stand for, float64 ``[m, k]``
    """

    op: str
    given: tuple[Any, ...]
    weight: torch.Tensor
    rounded: torch.Tensor

    @property
    def exact(self) -> torch.Tensor:
        """The product of the numbers that the call's tensors stand for, float64."""
        return self.rounded @ self.weight.T


Make = Callable[[torch.Tensor, torch.Tensor], Case]
"""``make(x, weight)``: a case of activations ``[m, k]`` and a weight ``[n, k]``, both in float32."""


def activations(m: int, k: int, kind: str, generator: torch.Generator) -> torch.Tensor:
    """Normal activations ``[m, k]``, of kind "outliers" with ``OUTLIER`` times as large columns."""
    x = torch.randn((m, k), device=generator.device, generator=generator)
    if kind == "outliers":
        columns = torch.randperm(k, device=generator.device, generator=generator)[: max(k // 128, 1)]
        x[:, columns] *= OUTLIER
    return x


def whole(dtype: torch.dtype) -> Make:
    """A dense layer."""

    def make(x: torch.Tensor, weight: torch.Tensor) -> Case:
        given = x.to(dtype), weight.to(dtype)
        return Case("linear", given, given[1].double(), given[0].double())

    return make


def packed(op: str, bits: int, group_size: int, dtype: torch.dtype = torch.bfloat16, **how: Any) -> Make:
    """A weight by registry.quantize, to which ``how`` goes, beside activations in ``dtype``; group 0 is a column."""
    return packed_by(
        op, lambda weight: registry.quantize(weight, bits, group_size or weight.shape[1], **how), dtype=dtype
    )


def packed_by(op: str, quantize: Callable[[torch.Tensor], PackedWeight], dtype: torch.dtype = torch.bfloat16) -> Make:
    """A packed weight beside activations in ``dtype``."""

    def make(x: torch.Tensor, weight: torch.Tensor) -> Case:
        made = quantize(weight.to(dtype))
        return Case(op, (x.to(dtype), made), _exact(made), x.to(dtype).double())

    return make


def packed_a8(op: str, bits: int, group_size: int, activation: str) -> Make:
    """A packed weight beside activations in 8 bits."""

    def make(x: torch.Tensor, weight: torch.Tensor) -> Case:
        made = registry.quantize(weight.bfloat16(), bits, group_size or weight.shape[1], symmetric=True)
        levels, scales = registry.call("quantize_per_token", x.bfloat16(), activation)
        return Case(op, (levels, scales, made), _exact(made), levels.double() * scales.double())

    return make


def scaled(dtype: str) -> Make:
    """Both operands in 8 bits, with a scale for each row."""

    def make(x: torch.Tensor, weight: torch.Tensor) -> Case:
        (a, scale_a), (b, scale_b) = (
            registry.call("quantize_per_token", each.bfloat16(), dtype) for each in (x, weight)
        )
        return Case("scaled_mm", (a, b, scale_a, scale_b), b.double() * scale_b.double(), a.double() * scale_a.double())

    return make


def sparse(x: torch.Tensor, weight: torch.Tensor) -> Case:
    """Half of the weight."""
    made = registry.sparsify24(weight.bfloat16())
    return Case("gemm_sparse24", (x.bfloat16(), made), made.dense().double(), x.bfloat16().double())


def _exact(weight: PackedWeight) -> torch.Tensor:
    """The weight ``[n, k]`` in float64: scales and zero points are numbers that it holds exactly."""
    zeros = None if weight.zeros is None else weight.zeros.double()
    how: dict[str, Any] = {"bits": weight.bits, "k": weight.shape[1], "g_idx": weight.g_idx}
    how["codebook"] = weight.codebook
    return dequantized(weight.qweight, weight.scales.double(), zeros, weight.group_size, torch.float64, **how).T


def _with_float_zeros(weight: torch.Tensor) -> PackedWeight:
    """Zero points that are not rounded, as HQQ has them, in groups of 64."""
    grouped = weight.float().unflatten(1, (-1, 64))
    low, high = grouped.aminmax(dim=-1, keepdim=True)
    scales = ((high - low) / 15).to(weight.dtype)
    zeros = -low / scales.float()
    q = (grouped / scales.float() + zeros).round().clamp(0, 15).flatten(1).to(torch.int32)
    parts = pack(q.T, 4), scales.squeeze(-1).T.contiguous(), zeros.squeeze(-1).T.contiguous()
    return PackedWeight(*parts, 4, 64, (weight.shape[0], weight.shape[1]))


def _with_act_order(weight: torch.Tensor) -> PackedWeight:
    """Groups of 128 columns that are no neighbours, as GPTQ's act-order has them."""
    order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(3)).to(weight.device)
    held = registry.quantize(weight[:, order], 4, 128)
    return ActOrderLinear(held, order.to(torch.int32)).weight


FORMATS: Mapping[str, Make] = {
    "float32": whole(torch.float32),
    "bfloat16": whole(torch.bfloat16),
    "float16": whole(torch.float16),
    "int8, a scale a column": packed("gemm_int8", 8, 0, symmetric=True),
    "int8 g128": packed("gemm_int8", 8, 128),
    "int4 g128": packed("gemm_int4", 4, 128),
    "int4 g128 symmetric": packed("gemm_int4", 4, 128, symmetric=True),
    "int4 g128, float16": packed("gemm_int4", 4, 128, dtype=torch.float16),
    "int4 g64, float zero points": packed_by("gemm_w4a16", _with_float_zeros),
    "int4 g128, act-order": packed_by("gemm_w4a16", _with_act_order),
    "int4 g16": packed("gemm_w4a16", 4, 16),
    "int4 g128, float32": packed("gemm_w4a16", 4, 128, dtype=torch.float32),
    "nf4 g64": packed("gemm_nf4", 4, 64, codebook="nf4"),
    "int2 g64": packed("gemm_int2", 2, 64),
    "int1 g64": packed("gemm_int1", 1, 64, symmetric=True),
    "W4A8 int8 g128": packed_a8("gemm_w4a8", 4, 128, "int8"),
    "W4A8 float8 g128": packed_a8("gemm_w4a8", 4, 128, "float8_e4m3fn"),
    "W8A8 int8 g128": packed_a8("gemm_w8a8", 8, 128, "int8"),
    "W8A8 int8, a scale a row": scaled("int8"),
    "W8A8 float8, a scale a row": scaled("float8_e4m3fn"),
    "2:4 sparse": sparse,
}
