"""Layers of a model packed in place: all before any is replaced, so that a fault leaves the model as it was."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import InvalidArgumentError, RegistryError, UnknownNameError
from ...nn import ActOrderLinear, PackedA8Linear, ScaledLinear
from ...nn.scaled_experts import ExpertWeights
from ...problem import dtype_name
from .adapters import lora_layers
from .inner_models import pretrained
from .packable import packable
from .parallel.agreeing import mesh_of, raise_together
from .quantization import RegistryConfig, RegistryQuantizer
from .quantization.experts import DOWN, GATE_UP, packed_experts
from .quantization.fitting import group_size_for
from .quantization.packing import packed_experts_of, packed_form, put_packed_experts
from .quantization.replacing import PackedLayer, packed_layers, put_packed
from .report import ApplyReport
from .swapping import carry_hooks

_FORMATS: Mapping[str, Mapping[str, Any]] = {
    "int8": {"bits": 8},
    "int4": {"bits": 4},
    "int2": {"bits": 2},
    "int1": {"bits": 1},
    "nf4": {"bits": 4, "codebook": "nf4"},
    "fp8": {"bits": 8, "activations": "float8_e4m3fn"},
    "w8a8": {"bits": 8, "activations": "int8"},
    "w4a8": {"bits": 4, "activations": "int8"},
}
GROUP_SIZE = 128
_PACKED = "packed_by_apply"
"""The attribute of layers whose weights in full precision ``apply`` has dropped."""


@dataclass(frozen=True)
class Packing:
    """Packed layers and experts by their names, of a model that still has its own; true if there are any."""

    config: RegistryConfig
    layers: Mapping[str, PackedLayer]
    experts: Mapping[str, tuple[ExpertWeights, ExpertWeights]]

    def __bool__(self) -> bool:
        return bool(self.layers or self.experts)


def format_of(name: str, group_size: int, symmetric: bool) -> RegistryConfig:
    """The format of that name.

    Raises UnknownNameError for another one, InvalidArgumentError for what is no name, for a group size that is none,
    and for settings that the format has not.
    """
    if not isinstance(name, str):
        raise InvalidArgumentError(
            f"apply: quantize is a {type(name).__name__}, expected one of {', '.join(map(repr, _FORMATS))}",
            hint="a RegistryConfig is for from_pretrained(quantization_config=...)",
        )
    if name not in _FORMATS:
        raise UnknownNameError("format", name, _FORMATS, "of quantize")
    given = dict(_FORMATS[name])
    if "activations" in given and given["bits"] == 8:
        _refuse_settings(f"beside quantize={name!r}, which has one scale for each row", group_size, symmetric)
    else:
        given |= {"group_size": group_size, "symmetric": symmetric}
    return RegistryConfig(**given)


def refuse_without_format(group_size: int, symmetric: bool, lm_head: bool) -> None:
    """Raise InvalidArgumentError for settings of a quantisation that is not asked for."""
    _refuse_settings("without quantize", group_size, symmetric, lm_head)


def _refuse_settings(where: str, group_size: int, symmetric: bool, lm_head: bool = False) -> None:
    settings = {"group_size": (group_size, GROUP_SIZE), "symmetric": (symmetric, False), "lm_head": (lm_head, False)}
    given = [f"{name}={value!r}" for name, (value, default) in settings.items() if value != default]
    if given:
        raise InvalidArgumentError(
            f"apply: {', '.join(given)} {where}",
            hint=f'leave out {", ".join(given)}, or quantize="int4", which has such settings',
        )


def packing_of(model: torch.nn.Module, config: RegistryConfig, *, lm_head: bool, report: ApplyReport) -> Packing:
    """The packed forms of a model's layers, the output layer's only with ``lm_head``; the model is not changed.

    Raises InvalidArgumentError for a model without such layers, for weights that are not loaded, spread over devices
    or not finite, with the layer's name, and for layers that are packed in another format already.
    """
    _refuse_other_forms(model, config)
    _refuse_other_libraries(model)
    found = packable(model, config, lm_head=lm_head)
    for name, reason in found.left.items():
        report.leave(reason, name)
    mesh = mesh_of(model)
    faults: list[RegistryError] = []
    layers = {name: _named(name, faults, mesh, packed_form, layer, config) for name, layer in found.layers.items()}
    experts = {name: _named(name, faults, mesh, _packed_experts, one, config) for name, one in found.experts.items()}
    raise_together(next(iter(faults), None), mesh)
    return Packing(config, layers, experts)


def put(model: torch.nn.Module, packing: Packing, report: ApplyReport) -> None:
    """Replace a model's layers by their packed forms, which ``save_pretrained`` then writes."""
    for name, layer in packing.layers.items():
        carry_hooks(model.get_submodule(name), layer)
        put_packed(model, name, layer)
        layer.__dict__[_PACKED] = True
        report.add(f"linear packed in {packing.config.bits} bits", name)
    for name, (gate_up, down) in packing.experts.items():
        plain = model.get_submodule(name)
        put_packed_experts(model, name, gate_up, down)
        packed = model.get_submodule(name)
        carry_hooks(plain, packed)
        packed.__dict__[_PACKED] = True
        report.add(f"experts packed in {packing.config.bits} bits", name)
    for layer in lora_layers(model):
        _refuse_merging(layer)
    for each in pretrained(model).values():
        if not (any(packed_layers(each)) or any(packed_experts(each))):
            continue
        quantizer = RegistryQuantizer(copy.deepcopy(packing.config), pre_quantized=False)
        quantizer.postprocess_model(each)
        each.hf_quantizer = quantizer


def lost_weights(model: torch.nn.Module) -> bool:
    """True if ``apply`` has packed layers of a model, which still are."""
    return any(_PACKED in vars(module) for module in model.modules())


def _refuse_other_forms(model: torch.nn.Module, config: RegistryConfig) -> None:
    """Raise InvalidArgumentError for a layer that is packed, but not as the format packs one."""
    for name, layer in packed_layers(model):
        given, asked = _form(layer), _form_in(config, layer)
        if given != asked:
            raise InvalidArgumentError(
                f"apply: {name} is packed already, {given}; asked for is {asked}",
                hint="its weight in full precision is gone: load the model in full precision, and apply this format"
                " alone; or leave out quantize",
            )


def _refuse_other_libraries(model: torch.nn.Module) -> None:
    """Raise InvalidArgumentError for a model that another library has quantised, and would save in its own way."""
    for each in pretrained(model).values():
        quantizer = getattr(each, "hf_quantizer", None)
        if quantizer is not None and not isinstance(quantizer, RegistryQuantizer):
            raise InvalidArgumentError(
                f"apply: {type(each).__name__} is quantised already, by {type(quantizer).__name__}",
                hint="load the model in full precision, or leave out quantize",
            )


def _form(layer: PackedLayer) -> str:
    """The format of a packed layer in words."""
    if isinstance(layer, ScaledLinear):
        return f"{dtype_name(layer.levels.dtype)} beside activations alike"
    activations = layer.activations if isinstance(layer, PackedA8Linear) else None
    words = _words(layer.bits, layer.group_size, layer.zeros is None, layer.codebook, activations)
    by_groups = isinstance(layer, ActOrderLinear) or layer.g_idx is not None
    return f"{words}, with act-order" if by_groups else words


def _form_in(config: RegistryConfig, layer: PackedLayer) -> str:
    """The format in words that a layer of the same shape has after packing."""
    if config.rounded_to is not None:
        return f"{config.rounded_to} beside activations alike"
    size, k = group_size_for(config, layer.in_features), layer.in_features
    return _words(config.bits, k if size == -1 else size, config.symmetric, config.codebook, config.activations)


def _words(bits: int, size: int, symmetric: bool, codebook: str | None, activations: str | None) -> str:
    kind = codebook or f"{bits} bits, {'symmetric' if symmetric else 'with zero points'}"
    beside = "" if activations is None else f", beside activations in {activations}"
    return f"{kind} in groups of {size}{beside}"


def _named(name: str, faults: list[RegistryError], mesh: Any, make: Any, *args: Any) -> Any:
    """``make(*args)``; faults name the layer. With a mesh they are noted, since other ranks go on to the next layer."""
    try:
        return make(*args)
    except RegistryError as fault:
        told = InvalidArgumentError(f"apply: {name}: {fault.message}", hint=fault.hint)
        if mesh is None:
            raise told from fault
        faults.append(told)
        return None


def _packed_experts(module: torch.nn.Module, config: RegistryConfig) -> tuple[ExpertWeights, ...]:
    return tuple(packed_experts_of(module, part, config) for part in (GATE_UP, DOWN))


def _refuse_merging(layer: Any) -> None:
    """Let a LoRA beside a layer that was packed in its place refuse to be merged, as ``lora_config`` makes them."""
    from .quantization.lora import PackedLoraLinear

    if isinstance(layer.get_base_layer(), PackedLayer) and not isinstance(layer, PackedLoraLinear):
        layer.__class__ = PackedLoraLinear
