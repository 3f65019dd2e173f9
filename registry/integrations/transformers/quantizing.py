"""Linear layers of a model packed in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch

from ...contracts.checks import HALVES
from ...errors import InvalidArgumentError, UnknownNameError
from ...nn import PackedLinear
from ...problem import dtype_name
from .quantization import RegistryConfig
from .quantization.fitting import group_size_for
from .quantization.replacing import linear_layers
from .report import Report

_FORMATS: dict[str, tuple[int, str | None]] = {
    "int8": (8, None), "int4": (4, None), "int2": (2, None), "int1": (1, None), "nf4": (4, "nf4"),
}  # fmt: skip


@dataclass(frozen=True)
class Quantized:
    """A format of packed weights."""

    bits: int
    codebook: str | None
    group_size: int
    symmetric: bool

    @classmethod
    def of(cls, name: str, group_size: int, symmetric: bool) -> Self:
        """The format of that name. Raises UnknownNameError for another one, InvalidArgumentError for a group size."""
        if name not in _FORMATS:
            raise UnknownNameError("quantize", name, _FORMATS)
        bits, codebook = _FORMATS[name]
        RegistryConfig(bits=bits, codebook=codebook, group_size=group_size, symmetric=symmetric)
        return cls(bits, codebook, group_size, symmetric)


def pack_linears(model: torch.nn.Module, how: Quantized, *, lm_head: bool, report: Report) -> bool:
    """Replace linear layers by packed ones; the output layer only with ``lm_head``. True if there was one.

    Raises InvalidArgumentError, before anything is replaced, for weights that are not loaded.
    """
    layers = list(linear_layers(model))
    for name, linear in layers:
        if linear.weight.is_meta:
            raise InvalidArgumentError(
                f"apply: the weight of {name} is not loaded", hint="load the model's weights first"
            )
        if how.bits == 4 and how.codebook is None and linear.weight.dtype not in HALVES:
            raise InvalidArgumentError(
                f"apply: the weight of {name} is {dtype_name(linear.weight.dtype)}; gemm_int4 multiplies float16 and"
                " bfloat16",
                hint='model.to(torch.bfloat16), or quantize="nf4" or "int8"',
            )
    found: Any = getattr(model, "get_output_embeddings", lambda: None)
    output = found()
    config = RegistryConfig(bits=how.bits, codebook=how.codebook, group_size=how.group_size, symmetric=how.symmetric)
    packed = False
    for name, linear in layers:
        if linear is output and not lm_head:
            report.leave("not packed: the output layer (lm_head=True packs it)", name)
            continue
        size = group_size_for(config, linear.in_features)
        if size is None:
            report.leave(f"not packed: no group size divides its {linear.in_features} columns", name)
            continue
        size = linear.in_features if size == -1 else size
        model.set_submodule(name, PackedLinear.from_linear(linear, how.bits, size, how.symmetric, how.codebook))
        report.add(f"linear packed in {how.bits} bits", name)
        packed = True
    return packed
