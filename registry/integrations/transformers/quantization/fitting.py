"""Group sizes and layers of packed weights, in forms that gemm_int4 takes where that is possible."""

from __future__ import annotations

from dataclasses import replace

from ....contracts.gemm_int4 import GROUP_SIZES, filling_group_size
from ....nn import ActOrderLinear, PackedLinear
from ....nn.packed_linear import taken_by_gemm_int4
from ....packed import PackedWeight
from .config import RegistryConfig


def group_size_for(config: RegistryConfig, k: int) -> int:
    """The group size for a weight ``[N, K]``: the config's, or for gemm_int4 the largest below it whose groups fill K.

    The config's, too, where there is none: gemm_w4a16 takes a group that K does not fill.
    """
    size = config.group_size
    if config.bits != 4 or config.codebook is not None:
        return size
    filling = filling_group_size(size, k)
    return -1 if filling == k else filling


def layer_of(weight: PackedWeight) -> PackedLinear:
    """A layer that computes with exactly this weight, by gemm_int4 where it takes 4 bits so."""
    if weight.bits != 4 or weight.codebook is not None:
        return PackedLinear(weight)
    weight = _divided(weight)
    if weight.g_idx is not None and taken_by_gemm_int4(weight):
        return ActOrderLinear.from_weight(weight)
    return PackedLinear(weight)


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
