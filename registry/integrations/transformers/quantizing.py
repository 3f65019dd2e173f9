"""Linear layers of a model packed in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from ...errors import InvalidArgumentError, UnknownNameError
from ...nn import PackedA8Linear, PackedExpertsMlp, PackedLinear, ScaledLinear
from .quantization import RegistryConfig
from .quantization.experts import BITS, DOWN, GATE_UP, expert_modules, put_experts, rounded
from .quantization.fitting import group_size_for
from .quantization.quantizer import RegistryQuantizer
from .quantization.replacing import linear_layers
from .report import ApplyReport

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


def format_of(name: str, group_size: int, symmetric: bool) -> RegistryConfig:
    """The format of that name. Raises UnknownNameError for another one, InvalidArgumentError for a group size."""
    if name not in _FORMATS:
        raise UnknownNameError("quantize", name, _FORMATS)
    given = dict(_FORMATS[name])
    if "activations" not in given or given["bits"] == 4:
        given |= {"group_size": group_size, "symmetric": symmetric}
    return RegistryConfig(**given)


def pack_linears(model: Any, config: RegistryConfig, *, lm_head: bool, report: ApplyReport) -> bool:
    """Replace linear layers by packed ones; the output layer only with ``lm_head``. True if there was one.

    ``save_pretrained`` writes the packed ones then. Raises InvalidArgumentError, before anything is replaced, for
    weights that are not loaded.
    """
    layers = list(linear_layers(model))
    for name, linear in layers:
        _check(name, linear)
    found: Any = getattr(model, "get_output_embeddings", lambda: None)
    output = found()
    packed = False
    for name, linear in layers:
        if linear is output and not lm_head:
            report.leave("not packed: the output layer (lm_head=True packs it)", name)
            continue
        model.set_submodule(name, _packed(linear, config))
        report.add(f"linear packed in {config.bits} bits", name)
        packed = True
    packed = _pack_experts(model, config, report) or packed
    if packed and isinstance(model, PreTrainedModel):
        quantizer = RegistryQuantizer(config, pre_quantized=False)
        quantizer.postprocess_model(model)
        model.hf_quantizer = quantizer
    return packed


def _pack_experts(model: torch.nn.Module, config: RegistryConfig, report: ApplyReport) -> bool:
    found = list(expert_modules(model))
    for name, module in found:
        if config.bits != BITS or config.codebook is not None:
            report.leave("not packed: experts are in 4 bits without a codebook", name)
            continue
        gate_up, down = (rounded(getattr(module, part).data, config) for part in (GATE_UP, DOWN))
        put_experts(model, name, gate_up, down)
        report.add("experts packed in 4 bits", name)
    return any(isinstance(model.get_submodule(name), PackedExpertsMlp) for name, _ in found)


def _check(name: str, linear: torch.nn.Linear) -> None:
    if linear.weight.is_meta:
        raise InvalidArgumentError(f"apply: the weight of {name} is not loaded", hint="load the model's weights first")


def _packed(linear: torch.nn.Linear, config: RegistryConfig) -> torch.nn.Module:
    activations = config.activations
    if activations is not None and config.bits == 8:
        return ScaledLinear.from_linear(linear, activations)
    size = group_size_for(config, linear.in_features)
    size = linear.in_features if size == -1 else size
    form = (config.bits, size, config.symmetric, config.codebook)
    if activations is None:
        return PackedLinear.from_linear(linear, *form)
    return PackedA8Linear.from_linear(linear, *form, activations)
