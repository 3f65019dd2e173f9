"""compressed-tensors checkpoints (llm-compressor, vLLM): pack-quantized integers and int-quantized int8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...errors import InvalidArgumentError
from ...problem import dtype_name
from ..layout import BITS, groups, pack, unpack, words
from .parts import check_bits, check_given, expect, parts, size_of_groups

WHAT = "from_compressed_tensors"
NAMES = ("weight_packed", "weight", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape")


def compressed_tensors_parts(state: Mapping[str, torch.Tensor], bits: int, group_size: int | None) -> dict[str, Any]:
    """Arguments of PackedWeight for a layer's state, as ``PackedWeight.from_compressed_tensors`` describes them."""
    if not isinstance(state, Mapping) or not ({"weight_packed", "weight"} & state.keys()):
        raise InvalidArgumentError(
            f"{WHAT}: neither weight_packed nor weight is given",
            hint=f"expected a module's own tensors, of the names {', '.join(NAMES)}",
        )
    given = {name: state[name] for name in NAMES if state.get(name) is not None}
    if "weight_scale" not in given:
        raise InvalidArgumentError(f"{WHAT}: weight_scale is not given", hint=f"got {', '.join(state)}")
    check_given(WHAT, **given)
    check_bits(WHAT, bits, BITS)
    q = _elements(given, bits)
    k, n = q.shape
    scales, size = _scales(given["weight_scale"], n, k, group_size)
    # integers are stored around 0, PackedWeight's around the middle of their levels
    zeros = torch.full_like(scales, 2 ** (bits - 1), dtype=torch.float32)
    if "weight_zero_point" in given:
        zeros = zeros + _zeros(given["weight_zero_point"], bits, n, scales.shape[0])
    g_idx = given.get("weight_g_idx")
    if g_idx is not None:
        expect(WHAT, "weight_g_idx", g_idx, (k,), (torch.int32, torch.int64))
        # compressed-tensors writes -1 where it has no order
        g_idx = None if (g_idx == -1).all() else g_idx
    return parts(pack(q, bits), scales, zeros, bits, size, (n, k), g_idx)


def _elements(given: Mapping[str, torch.Tensor], bits: int) -> torch.Tensor:
    """Integers from 0, ``[K, N]``."""
    if "weight_packed" not in given:
        weight = given["weight"]
        if weight.dtype != torch.int8 or weight.dim() != 2:
            raise InvalidArgumentError(
                f"{WHAT}: weight is {dtype_name(weight.dtype)} of shape {tuple(weight.shape)}",
                hint="expected int8 [N, K] (int-quantized), or weight_packed in int32 (pack-quantized)",
            )
        middle = 2 ** (bits - 1)
        if weight.numel() and (int(weight.min()) < -middle or int(weight.max()) >= middle):
            raise InvalidArgumentError(
                f"{WHAT}: weight has numbers from {int(weight.min())} to {int(weight.max())}, beyond bits={bits}",
                hint="pass the scheme's num_bits, e.g. bits=8",
            )
        return torch.add(weight.T.int(), middle)
    packed = given["weight_packed"]
    if packed.dtype == torch.uint8:
        raise InvalidArgumentError(
            f"{WHAT}: weight_packed is uint8, as floats of 4 or 6 bits have it (nvfp4, mxfp4), which are not supported",
            hint="expected int32 words of integers (pack-quantized): dequantise the weight, and use registry.quantize",
        )
    if "weight_shape" not in given or given["weight_shape"].numel() != 2:
        raise InvalidArgumentError(f"{WHAT}: weight_shape is not given", hint="expected (N, K) beside weight_packed")
    n, k = (int(size) for size in given["weight_shape"])
    hint = f"for bits={bits} and weight_shape {(n, k)}; other bits than the checkpoint's num_bits?"
    expect(WHAT, "weight_packed", packed, (n, words(k, bits)), (torch.int32,), hint)
    return unpack(packed.T, bits, k)


def _scales(scale: torch.Tensor, n: int, k: int, group_size: int | None) -> tuple[torch.Tensor, int]:
    """Scales ``[groups, N]`` and the group size, which is K for one scale per channel or tensor."""
    if scale.numel() == 1:
        return scale.reshape(1, 1).expand(1, n), k
    count = scale.shape[1] if scale.dim() == 2 else 0
    size = size_of_groups(WHAT, k // count if group_size is None and count and k % count == 0 else group_size, k)
    size = k if count == 1 else size
    expect(WHAT, "weight_scale", scale, (n, groups(k, size)), hint=f"for K={k} and group_size={group_size}")
    return scale.T, size


def _zeros(zero_point: torch.Tensor, bits: int, n: int, count: int) -> torch.Tensor:
    """Zero points around 0, ``[groups, N]``; int32 words hold them from 0, packed along N.

    A matrix of one word holds the zero points of all channels of a narrow weight: the one of a whole tensor is no
    matrix.
    """
    if zero_point.dtype == torch.int32 and zero_point.dim() == 2:
        expect(WHAT, "weight_zero_point", zero_point, (words(n, bits), count), (torch.int32,))
        return torch.sub(unpack(zero_point, bits, n).T.float(), 2 ** (bits - 1))
    if zero_point.numel() == 1:
        return zero_point.reshape(1, 1).float()
    expect(WHAT, "weight_zero_point", zero_point, (n, count), (torch.int8,))
    return zero_point.T.float()
