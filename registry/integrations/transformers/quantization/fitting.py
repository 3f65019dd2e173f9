"""PackedLayer weights in forms that the ops run: gemm_int4 takes fewer than PackedWeight holds."""

from __future__ import annotations

from dataclasses import replace

import torch

from ....contracts.gemm_int4 import GROUP_SIZES, PER_WORD
from ....nn import ActOrderLinear, PackedLinear
from ....packed import PackedWeight, pack, symmetric_zero, unpack, zero_kind
from .config import RegistryConfig


def group_size_for(config: RegistryConfig, k: int) -> int | None:
    """The group size for a weight ``[N, K]``: the config's, or the largest below it whose groups fill K.

    None if there is none, so that the layer is not packed.
    """
    if config.bits != 4 or config.codebook is not None:
        return config.group_size
    if k % PER_WORD:
        return None
    if config.group_size == -1 or k <= config.group_size:
        return -1
    return max((size for size in GROUP_SIZES if size <= config.group_size and k % size == 0), default=None)


def layer_of(weight: PackedWeight) -> PackedLinear:
    """A layer that computes with exactly this weight, by an op that there is.

    Weights of 4 bits with float zero points, or groups that gemm_int4 does not take, are held in 8 bits.
    """
    if weight.bits != 4 or weight.codebook is not None:
        return PackedLinear(weight)
    weight = _divided(weight)
    k, size = weight.shape[1], weight.group_size
    taken = k % PER_WORD == 0 and k % size == 0 and (size == k or size in GROUP_SIZES)
    if not taken or zero_kind(weight.zeros) == "float":
        return PackedLinear(widened(weight))
    return PackedLinear(weight) if weight.g_idx is None else ActOrderLinear.from_weight(weight)


def widened(weight: PackedWeight) -> PackedWeight:
    """The weight with its 4-bit integers in 8 bits."""
    zeros = weight.zeros
    if zeros is None:
        zeros = torch.full_like(weight.scales, symmetric_zero(weight.bits))
    q = unpack(weight.qweight, weight.bits, weight.shape[1])
    return replace(weight, qweight=pack(q, 8), zeros=zeros, bits=8)


def _divided(weight: PackedWeight) -> PackedWeight:
    """Groups larger than gemm_int4's as several of its largest, with the scale and zero point of their group."""
    times, rest = divmod(weight.group_size, GROUP_SIZES[-1])
    if weight.g_idx is not None or rest or times < 2 or weight.group_size == weight.shape[1]:
        return weight
    count = -(-weight.shape[1] // GROUP_SIZES[-1])
    scales, zeros = (
        None if part is None else part.repeat_interleave(times, 0)[:count].contiguous()
        for part in (weight.scales, weight.zeros)
    )
    assert scales is not None
    return replace(weight, scales=scales, zeros=zeros, group_size=GROUP_SIZES[-1])
