"""LoRA by PEFT beside packed layers."""

from __future__ import annotations

import warnings
from typing import Any, get_args

import torch
from peft import LoraConfig
from peft.tuners.lora.layer import Linear as LoraLinear

from ....errors import InvalidArgumentError
from ..parallel.layers import ShardedLayer
from .dense import DenseLayer
from .replacing import PackedLayer

_INITIALISATIONS = (True, False, "gaussian", "eva")
"""Values of ``init_lora_weights`` by which the weight is not read."""


class PackedLoraLinear(LoraLinear):  # type: ignore[misc, unused-ignore]
    """A packed layer, frozen, and its adapters beside it, in PEFT's own computation. Nothing is merged into it."""

    def __init__(self, base_layer: torch.nn.Module, adapter_name: str, config: LoraConfig, **kwargs: Any) -> None:
        with warnings.catch_warnings():
            # PEFT warns of every class that is not its own
            warnings.filterwarnings("ignore", message="Unsupported layer type", category=UserWarning)
            super().__init__(base_layer, adapter_name, config=config, **kwargs)

    def merge(self, *args: Any, **kwargs: Any) -> None:
        """PEFT's merge, after ``dequantize``. Raises InvalidArgumentError before: the sum would be rounded again."""
        if not isinstance(self.get_base_layer(), PackedLayer):
            super().merge(*args, **kwargs)
            return
        raise InvalidArgumentError(
            "LoRA: adapters are not merged into packed layers, whose few bits would lose them",
            hint="save the adapters, and merge them into the model in full precision or after model.dequantize()",
        )


def pack_aware(config: LoraConfig, model: torch.nn.Module | None = None) -> LoraConfig:
    """A LoRA configuration whose adapters lie beside packed layers, as ``lora_config`` describes."""
    if not isinstance(config, LoraConfig):
        raise InvalidArgumentError(f"lora_config: got a {type(config).__name__}, expected a peft.LoraConfig")
    if config.init_lora_weights not in _INITIALISATIONS:
        raise InvalidArgumentError(
            f"lora_config: init_lora_weights={config.init_lora_weights!r} reads weights in full precision",
            hint=f"expected {', '.join(map(repr, _INITIALISATIONS))}",
        )
    if config.use_dora:
        raise InvalidArgumentError("lora_config: use_dora=True needs weights in full precision", hint="use_dora=False")
    if config.target_modules == "all-linear" and model is not None:
        config.target_modules = _all_linear(model)
    if model is not None and any(isinstance(module, ShardedLayer) for module in model.modules()):
        raise InvalidArgumentError(
            "lora_config: ranks share the model's packed layers, and PEFT would give each rank an adapter of its own",
            hint="train adapters without a tensor-parallel plan, or in full precision",
        )
    config._register_custom_module(dict.fromkeys(get_args(PackedLayer), PackedLoraLinear))
    return config


def _all_linear(model: torch.nn.Module) -> list[str]:
    """Names of all linear layers, packed or not, but the output embeddings: PEFT itself finds nn.Linear only."""
    find = getattr(model, "get_output_embeddings", lambda: None)
    head = find()
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, DenseLayer | PackedLayer) and module is not head
    ]
