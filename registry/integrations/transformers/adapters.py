"""PEFT's adapters in a model: which modules are theirs, and which base layers they leave free to be packed.

PEFT need not be installed: its layers are known by an attribute that all their classes have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .swapping import own_class

LEARNS = "not packed: a part of an adapter"
TRAINED = "not packed: PEFT trains it, or a copy of it"
MERGED = "not packed: an adapter is merged into it (unmerge_adapter takes it out)"
READ = "not packed: the {} adapter beside it needs its weight in full precision"


def kept_by_adapters(model: torch.nn.Module) -> dict[int, str]:
    """Why modules may not be packed, by their ids: adapters, what PEFT trains, and what an adapter must read."""
    kept: dict[int, str] = {}
    for module in model.modules():
        if hasattr(type(module), "adapter_layer_names"):
            kept |= _of_adapter(module)
        # prompt and prefix tuning have their layers in the PeftModel itself
        prompts = module._modules.get("prompt_encoder") if hasattr(module, "peft_config") else None
        if prompts is not None:
            kept |= dict.fromkeys(map(id, prompts.modules()), LEARNS)
    if has_adapters(model):
        # a model's own weights are frozen beside adapters
        learning = (module for module in model.modules() if _learns(module) and id(module) not in kept)
        kept |= dict.fromkeys(map(id, learning), TRAINED)
    return kept


def has_adapters(model: torch.nn.Module) -> bool:
    """True for a model with PEFT's adapters, beside which its own weights are frozen."""
    return any(hasattr(one, "peft_config") or hasattr(type(one), "adapter_layer_names") for one in model.modules())


def lora_layers(model: torch.nn.Module) -> Iterator[Any]:
    """The modules of a model that are PEFT's plain LoRA beside a linear layer."""
    for module in model.modules():
        if hasattr(type(module), "adapter_layer_names") and _is_plain_lora(module):
            yield module


def _of_adapter(layer: torch.nn.Module) -> dict[int, str]:
    """Reasons to leave modules of one of PEFT's layers, by id.

    A layer has its base as ``base_layer``, or wraps a module and a copy of it that learns.
    """
    base = layer._modules.get("base_layer")
    if base is None:
        return dict.fromkeys(map(id, layer.modules()), TRAINED)
    of_base = {id(module) for module in base.modules()}
    kept = dict.fromkeys((id(module) for module in layer.modules() if id(module) not in of_base), LEARNS)
    if not _is_plain_lora(layer):
        return kept | dict.fromkeys(of_base, READ.format(_method(layer)))
    return kept | dict.fromkeys(of_base, MERGED) if getattr(layer, "merged", False) else kept


def _is_plain_lora(layer: Any) -> bool:
    """True for PEFT's LoRA of a linear layer without a variant, such as DoRA, that may read the layer's weight."""
    own = own_class(layer)
    known = own.__name__ == "Linear" and own.__module__ == "peft.tuners.lora.layer"
    # that of lora_config, whose base may have been dequantised
    return (known or own.__name__ == "PackedLoraLinear") and not getattr(layer, "lora_variant", None)


def _method(layer: Any) -> str:
    """The name of an adapter's method as PEFT's package has it, with a variant's class."""
    parts = type(layer).__module__.split(".")
    variants = sorted({type(one).__name__ for one in getattr(layer, "lora_variant", {}).values()})
    return ", ".join([parts[2] if len(parts) > 2 else parts[0], *variants])


def _learns(module: torch.nn.Module) -> bool:
    return any(one.requires_grad for one in module.parameters(recurse=False))
