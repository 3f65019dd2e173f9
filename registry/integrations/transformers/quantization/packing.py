"""Dense layers and experts in packed form; of those that ranks share, this rank's part."""

from __future__ import annotations

from typing import Any

import torch

from ....errors import InvalidArgumentError
from ....nn import PackedA8Linear, PackedLinear, ScaledLinear
from ....nn.scaled_experts import ExpertWeights
from ....nn.scaled_linear import rounded_rows
from ....packed import quantize
from ..parallel.cuts import COLUMNS, ROWS, Cut, cut_of, shared_group_size
from ..parallel.parts import cut_experts, cut_layer, experts_cut, shard_experts, shard_linear
from ..parallel.styles import EXPERT_STYLES, check_style, is_planned, shards_under, style_around
from ..proofs import is_spread
from .config import EXPERT_BITS, RegistryConfig
from .dense import DenseLayer, matrix, shape_of
from .experts import DOWN, GATE_UP, PackedMlp, looks_like_experts, put_experts, rounded
from .fitting import group_size_for
from .replacing import PackedLayer


def packed_form(layer: DenseLayer, config: RegistryConfig, loaded: torch.Tensor | None = None) -> PackedLayer:
    """A dense layer's packed form, without its bias; ``loaded`` is a weight that a loader has read for it.

    Of a layer that ranks share, what is loaded is this rank's part if the layer's own weight is a DTensor.
    Raises InvalidArgumentError for a weight that is not finite, and for parts that cannot be packed.
    """
    if is_planned(layer):
        return _packed_part(layer, config, loaded)
    weight = matrix(layer, loaded)
    return _packed(weight, config, group_size_for(config, weight.shape[1]))


def part_for(layer: DenseLayer, packed: PackedLayer) -> PackedLayer:
    """This rank's part of a whole packed layer that stands for a dense one; the whole if ranks do not share it."""
    if not is_planned(layer):
        return packed
    style, mesh = check_style(layer)
    cut = _cut_under(layer, "weight", style, mesh)
    size = packed.group_size if isinstance(packed, PackedLinear) else -1
    part = packed if cut is None else cut_layer(packed, cut, mesh)
    shard_linear(part, style, mesh, cut, shape_of(layer), size)
    return part


def packed_experts_of(
    module: torch.nn.Module, name: str, config: RegistryConfig, loaded: torch.Tensor | None = None
) -> ExpertWeights:
    """The packed form of a weight of experts, or of one that a loader has read for it, as in ``packed_form``."""
    weight: Any = getattr(module, name)
    if not is_planned(module):
        return rounded(weight.data if loaded is None else loaded, config)
    _, mesh = check_style(module, experts=True)
    cut, is_part = _cut_of_experts(module, name), is_spread(weight)
    size = _shared_size(module, config, mesh)
    if loaded is None and is_part and cut is not None and cut.dim == COLUMNS and config.rounded_to is not None:
        loaded, is_part = weight.data.full_tensor(), False
    found = rounded(loaded if loaded is not None else weight.data.to_local() if is_part else weight.data, size)
    return found if is_part else cut_experts(found, cut, mesh)


def put_packed_experts(model: torch.nn.Module, name: str, gate_up: ExpertWeights, down: ExpertWeights) -> None:
    """Replace the experts ``name`` by packed ones; by this rank's parts of them, if ranks share them."""
    plain = model.get_submodule(name)
    cuts = {part: _cut_of_experts(plain, part) for part in (GATE_UP, DOWN)} if is_planned(plain) else {}
    style, mesh = check_style(plain, experts=True) if cuts else (None, None)
    packed = put_experts(model, name, gate_up, down)
    if cuts:
        shard_experts(packed, style, mesh, {"gate_up": cuts[GATE_UP], "down": cuts[DOWN]})


def part_read(model: torch.nn.Module) -> None:
    """Cut what a loader has read as a whole, where a plan has ranks share it: packed experts, and dense weights."""
    for name, module in list(model.named_modules()):
        style, mesh = style_around(module) or (None, None)
        if style is None:
            continue
        if isinstance(module, PackedMlp):
            _part_experts(model, name, module)
        elif isinstance(module, torch.nn.Linear):
            _part_dense(module, "weight", _cut_under(module, "weight", style, mesh), mesh)
        elif type(style).__name__ in EXPERT_STYLES and looks_like_experts(module):
            for part in (GATE_UP, DOWN):
                along = _whole_cut(module, part)
                _part_dense(module, part, Cut(along.dim + 1, along.size, along.split), mesh)


def _part_experts(model: torch.nn.Module, name: str, whole: PackedMlp) -> None:
    style, mesh = check_style(whole, experts=True)
    plain = whole.__dict__["plain"]
    cuts = {GATE_UP: _whole_cut(plain, GATE_UP), DOWN: _whole_cut(plain, DOWN)}
    parts = [cut_experts(one, cuts[part], mesh) for part, one in ((GATE_UP, whole.gate_up), (DOWN, whole.down))]
    model.set_submodule(name, plain)
    packed = put_experts(model, name, *parts)
    shard_experts(packed, style, mesh, {"gate_up": cuts[GATE_UP], "down": cuts[DOWN]})


def _part_dense(module: torch.nn.Module, name: str, cut: Cut | None, mesh: Any) -> None:
    weight = module._parameters[name]
    if weight is not None and cut is not None and not is_spread(weight):
        made = cut.whole(cut.part(weight.data, mesh), mesh)
        module._parameters[name] = torch.nn.Parameter(made, requires_grad=weight.requires_grad)


def _cut_of_experts(module: torch.nn.Module, name: str) -> Cut | None:
    """The cut of each expert's weight ``name`` of experts that ranks share."""
    weight: Any = getattr(module, name)
    return experts_cut(cut_of(weight.data.placements, weight.shape)) if is_spread(weight) else _whole_cut(module, name)


def _whole_cut(module: torch.nn.Module, name: str) -> Cut:
    """The cut of a weight of experts that is read as a whole, of which the plan's style sums the outputs."""
    _, n, k = getattr(module, name).shape
    return Cut(ROWS, n, 2) if name == GATE_UP else Cut(COLUMNS, k)


def needs_whole(config: RegistryConfig) -> bool:
    """Whether a row has one scale for columns that ranks share, so that it is rounded before they are parted."""
    return config.rounded_to is not None or config.group_size == -1


def _packed_part(layer: DenseLayer, config: RegistryConfig, loaded: torch.Tensor | None) -> PackedLayer:
    if not isinstance(layer, torch.nn.Linear):
        raise InvalidArgumentError(
            f"a {type(layer).__name__} is not shared by ranks", hint="leave it out of the tensor-parallel plan"
        )
    style, mesh = check_style(layer)
    weight: Any = layer.weight.data
    if is_spread(weight) or loaded is None:
        cut = cut_of(weight.placements, weight.shape) if is_spread(weight) else None
    else:
        cut = _cut_under(layer, "weight", style, mesh)
    n, k = shape_of(layer)
    by_columns = cut is not None and cut.dim == COLUMNS
    size = group_size_for(config, k)
    if by_columns and not needs_whole(config):
        size = shared_group_size(config.group_size, config.bits, k, mesh.size())
    is_whole = not is_spread(weight)
    if loaded is None:
        is_whole = is_whole or (by_columns and needs_whole(config))
        loaded = weight if not is_spread(weight) else weight.full_tensor() if is_whole else weight.to_local()
    packed = _packed(loaded, config, size)
    if is_whole and cut is not None:
        packed = cut_layer(packed, cut, mesh)
    shard_linear(packed, style, mesh, cut, (n, k), size)
    return packed


def _packed(weight: torch.Tensor, config: RegistryConfig, size: int) -> PackedLayer:
    if config.rounded_to is not None:
        return ScaledLinear(*rounded_rows(weight, config.rounded_to))
    packed = quantize(weight, config.bits, size, config.symmetric, config.codebook)
    activations = config.activations
    return PackedLinear(packed) if activations is None else PackedA8Linear(packed, None, activations)


def _cut_under(module: torch.nn.Module, name: str, style: Any, mesh: Any) -> Cut | None:
    """The cut that a style has for a parameter of a module, whichever of it is loaded."""
    weight: Any = getattr(module, name)
    placements = shards_under(style, name, tuple(weight.shape), mesh)
    return None if placements is None else cut_of(placements, weight.shape)


def _shared_size(module: torch.nn.Module, config: RegistryConfig, mesh: Any) -> RegistryConfig:
    """The config with a group size of which each rank has whole groups, for both weights of experts."""
    if config.rounded_to is not None:
        return config
    if config.group_size == -1:
        raise InvalidArgumentError(
            "of experts whose columns ranks share, one group for all columns is not packed",
            hint=f"give a group_size that divides {getattr(module, DOWN).shape[-1] // mesh.size()}, a rank's columns",
        )
    size = shared_group_size(config.group_size, EXPERT_BITS, getattr(module, DOWN).shape[-1], mesh.size())
    return RegistryConfig(config.bits, size, config.symmetric, config.codebook, config.activations)
