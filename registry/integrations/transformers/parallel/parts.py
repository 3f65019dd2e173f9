"""Whole packed layers and experts cut into the parts of ranks, and the plans of such parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ....errors import InvalidArgumentError
from ....nn import PackedA8Linear, PackedExpertsMlp, PackedLinear, ScaledExperts, ScaledExpertsMlp, ScaledLinear
from ....nn.scaled_experts import ExpertWeights
from ....packed import PackedExperts, groups, words
from .cuts import COLUMNS, ROWS, Cut, cut_packed
from .layers import ShardPlan, shard

PARTS = ("gate_up", "down")
"""The weights of packed experts."""
AnyPacked = PackedLinear | ScaledLinear


def cut_layer(layer: AnyPacked, cut: Cut, mesh: Any) -> AnyPacked:
    """A new layer of this rank's part of a whole layer's weight, without a bias; ``cut`` is of ``[N, K]``."""
    if isinstance(layer, ScaledLinear):
        scales = cut.part(layer.scales, mesh) if cut.dim == ROWS else layer.scales
        return ScaledLinear(cut.part(layer.levels.view(torch.uint8), mesh).view(layer.levels.dtype), scales)
    weight = cut_packed(layer.weight, cut, mesh)
    if isinstance(layer, PackedA8Linear):
        return PackedA8Linear(weight, None, layer.activations, layer.activation_scale)
    if type(layer) is not PackedLinear:
        raise InvalidArgumentError(
            f"a {type(layer).__name__} is not shared by ranks", hint="load it without a tensor-parallel plan"
        )
    return PackedLinear(weight)


def shard_linear(layer: AnyPacked, style: Any, mesh: Any, cut: Cut | None, shape: tuple[int, int], size: int) -> None:
    """Let a layer of this rank's part be that part of a weight of ``shape`` in groups of ``size``, in a style."""
    tensors: dict[str, Cut] = {}
    if cut is not None:
        kind = None if isinstance(layer, ScaledLinear) else layer.bits
        tensors = _tensor_cuts(cut, shape[1], kind, size)
        if cut.dim == ROWS:
            tensors["bias"] = cut
    weights = {} if cut is None else {"weight": cut}
    shard(layer, ShardPlan(mesh, style, None if cut is None else cut.dim, shape, size, weights, tensors))


def shard_experts(
    experts: PackedExpertsMlp | ScaledExpertsMlp, style: Any, mesh: Any, cuts: Mapping[str, Cut | None]
) -> None:
    """Let experts of this rank's parts be those parts of whole ones; ``cuts`` of each of PARTS are of ``[N, K]``."""
    tensors: dict[str, Cut] = {}
    weights: dict[str, Cut] = {}
    bits, size = (experts.down.bits, experts.down.group_size) if isinstance(experts, PackedExpertsMlp) else (None, -1)
    inner = 1 if (down := cuts["down"]) is None else down.size
    for part in PARTS:
        cut = cuts[part]
        if cut is not None:
            k = inner if cut.dim == COLUMNS else cut.size
            found = _tensor_cuts(cut, k, bits, size)
            # the dimension of the experts is the first
            weights[f"{part}_proj"] = Cut(cut.dim + 1, cut.size, cut.split)
            tensors |= {f"{part}_{name}": Cut(one.dim + 1, one.size, one.split) for name, one in found.items()}
    shard(experts, ShardPlan(mesh, style, None, (0, 0), size, weights, tensors))


def cut_experts(experts: ExpertWeights, cut: Cut | None, mesh: Any) -> ExpertWeights:
    """This rank's part of the weights of whole experts; ``cut`` is of each one's ``[N, K]``."""
    if cut is None:
        return experts
    if isinstance(experts, PackedExperts):
        return PackedExperts.stack([cut_packed(experts[one], cut, mesh) for one in range(len(experts))])
    along = Cut(cut.dim + 1, cut.size, cut.split)
    levels = along.part(experts.levels.view(torch.uint8), mesh).view(experts.levels.dtype)
    return ScaledExperts(levels, along.part(experts.scales, mesh) if cut.dim == ROWS else experts.scales)


def experts_cut(cut: Cut | None) -> Cut | None:
    """The cut of each expert's ``[N, K]``, for that of a tensor of all experts.

    Raises InvalidArgumentError where ranks have different experts.
    """
    if cut is None:
        return None
    if not cut.dim:
        raise InvalidArgumentError(
            "its experts are on different ranks (expert parallel)",
            hint="packed experts are shared by a tensor-parallel plan alone, or leave out quantize",
        )
    return Cut(cut.dim - 1, cut.size, cut.split)


def _tensor_cuts(cut: Cut, k: int, bits: int | None, size: int) -> dict[str, Cut]:
    """The cuts of a packed weight's tensors; ``bits`` is None for levels and their scales."""
    if bits is None:
        return {"levels": cut, "scales": cut} if cut.dim == ROWS else {"levels": cut}
    if cut.dim == ROWS:
        return {name: Cut(1, cut.size, cut.split) for name in ("qweight", "scales", "zeros")}
    found = {"qweight": Cut(0, words(k, bits))}
    if 0 < size < k:
        found |= dict.fromkeys(("scales", "zeros"), Cut(0, groups(k, size)))
    return found
