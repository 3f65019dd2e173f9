"""GemLite's layer of a packed weight; it tunes itself at its first calls."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from registry import PackedWeight
from registry.packed import unpack


def gemlite_layer(weight: PackedWeight) -> Any:
    """The layer for activations in the weight's dtype. Raises ValueError for a weight without zero points."""
    core = importlib.import_module("gemlite.core")
    if weight.zeros is None:
        raise ValueError("GemLite's layer here is one with zero points")
    n, k = weight.shape
    dtype = core.TORCH_TO_DTYPE[weight.dtype]
    layer = core.GemLiteLinearTriton(
        W_nbits=weight.bits,
        group_size=weight.group_size,
        in_features=k,
        out_features=n,
        input_dtype=dtype,
        output_dtype=dtype,
    )
    integers = unpack(weight.qweight, weight.bits, k).t().contiguous().to(torch.uint8)
    layer.pack(integers, weight.scales.t().contiguous(), weight.zeros.t().to(weight.dtype).contiguous())
    return layer
