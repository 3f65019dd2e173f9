"""Which layers of a model ``apply`` packs, and why it leaves the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from ...errors import InvalidArgumentError
from .adapters import kept_by_adapters
from .parallel.styles import check_release, is_planned
from .proofs import is_spread
from .quantization import RegistryConfig
from .quantization.config import OTHER_EXPERTS
from .quantization.dense import DenseLayer, linear_layers
from .quantization.experts import expert_modules, packed_experts
from .quantization.replacing import packed_layers
from .quantization.weight_readers import weight_readers
from .swapping import other_forward, own_class

_OUTPUT = "not packed: the output layer (lm_head=True packs it)"
_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel")
"""Classes of torch that have noted a model's parameters, which packed layers no longer have."""


@dataclass(frozen=True)
class Packable:
    """Layers and experts to pack, by their names; ``left``: why others stay, by theirs."""

    layers: dict[str, DenseLayer] = field(default_factory=dict)
    experts: dict[str, torch.nn.Module] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)


def packable(model: torch.nn.Module, config: RegistryConfig, *, lm_head: bool) -> Packable:
    """The layers of a model that are packed in the format of ``config``.

    Raises InvalidArgumentError for weights that are not loaded or are spread over devices, for a model in a wrapper of
    data parallelism, and if there is no layer that is, or could be, packed.
    """
    _check_unwrapped(model)
    check_release(model)
    found, kept, shared = Packable(), kept_by_adapters(model), _shared(model)
    outputs, readers = frozenset() if lm_head else _of_outputs(model), weight_readers(model)
    for name, layer in linear_layers(model):
        _check_weight(name, layer, layer.weight)
        reason = kept.get(id(layer)) or shared.get(id(layer.weight), {}).get(name) or _unlike(layer)
        reason = reason or (_OUTPUT if id(layer) in outputs else "")
        reason = reason or (f"not packed: {readers[name]}'s code reads its weight" if name in readers else "")
        if reason:
            found.left[name] = reason
        else:
            found.layers[name] = layer
    for name, module in expert_modules(model):
        _check_weight(name, module, next(module.parameters()))
        told = ("" if is_planned(module) else other_forward(module)) or ("" if config.packs_experts else OTHER_EXPERTS)
        reason = kept.get(id(module)) or (f"not packed: {told}" if told else "")
        if reason:
            found.left[name] = reason
        else:
            found.experts[name] = module
    found.left.update(_others(model))
    if "" in found.layers or "" in found.experts:
        raise InvalidArgumentError(
            f"apply: the model is itself a {own_class(model).__name__}, and layers are replaced in the module around",
            hint="apply to the module that holds it, or registry.nn.PackedLinear.from_linear(linear, bits=4)",
        )
    if not (found.layers or found.experts or any(packed_layers(model)) or any(packed_experts(model))):
        raise _nothing_to_pack(model, found.left)
    return found


def _check_unwrapped(model: torch.nn.Module) -> None:
    wrapper = next((type(one).__name__ for one in model.modules() if type(one).__name__ in _WRAPPERS), None)
    if wrapper is not None:
        raise InvalidArgumentError(
            f"apply: the model is in a {wrapper}, which has noted the parameters that packing drops",
            hint=f"quantise first: apply(model, quantize=...), then {wrapper}(model)",
        )


def _check_weight(name: str, layer: torch.nn.Module, weight: torch.Tensor) -> None:
    if weight.is_meta:
        raise InvalidArgumentError(f"apply: the weight of {name} is not loaded", hint="load the model's weights first")
    if is_spread(weight) and not is_planned(layer):
        raise InvalidArgumentError(
            f"apply: the weight of {name} is spread over devices (DTensor), by no tensor-parallel plan",
            hint="quantise first: apply(model, quantize=...), then fully_shard(model)",
        )


def _unlike(layer: DenseLayer) -> str:
    if "weight" not in layer._parameters:
        return "not packed: its weight is made of other tensors, as by torch's prune or weight_norm"
    if is_planned(layer):
        return ""
    if "forward" in vars(layer):
        return "not packed: another program has replaced its forward"
    kind = type(layer.weight.data)
    return "" if kind is torch.Tensor else f"not packed: its weight is a {kind.__name__}"


def _shared(model: torch.nn.Module) -> Mapping[int, Mapping[str, str]]:
    """For the id of a weight that several modules have, or one in several places: each module's name and a reason."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name.rpartition(".")[0])
    return {
        key: {
            name: f"not packed: its weight is tied to that of {next((one for one in several if one != name), name)}"
            for name in several
        }
        for key, several in names.items()
        if len(several) > 1
    }


def _of_outputs(model: torch.nn.Module) -> frozenset[int]:
    """The ids of output layers; an adapter in the place of one has it inside."""
    found: set[int] = set()
    for module in model.modules():
        output = module.get_output_embeddings() if isinstance(module, PreTrainedModel) else None
        if isinstance(output, torch.nn.Module):
            found |= {id(one) for one in output.modules()}
    return frozenset(found)


def _others(model: torch.nn.Module) -> Iterator[tuple[str, str]]:
    """Subclasses of nn.Linear by name, and why they stay."""
    for name, module in model.named_modules():
        own = own_class(module)
        if isinstance(module, torch.nn.Linear) and own is not torch.nn.Linear:
            yield name, f"not packed: a {own.__name__}, which may use its weight otherwise than nn.Linear"


def _nothing_to_pack(model: torch.nn.Module, left: Mapping[str, str]) -> InvalidArgumentError:
    told = [f"{name} is {reason}" for name, reason in left.items()][:3]
    return InvalidArgumentError(
        f"apply: {type(model).__name__} has no layer to pack",
        hint="; ".join(told)
        or "packed are layers of the classes nn.Linear and Conv1D (GPT-2's), and Mixtral's experts",
    )
