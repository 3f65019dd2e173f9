"""Quantised models in transformers: RegistryConfig for ``from_pretrained``, checkpoints of other libraries, LoRA."""

from __future__ import annotations

from typing import Any

from .config import RegistryConfig
from .loading import load
from .merging import accept_registry_config
from .quantizer import RegistryQuantizer

accept_registry_config()


def lora_config(config: Any, model: Any = None) -> Any:
    """A ``peft.LoraConfig`` whose adapters may also stand beside packed layers; changed in place and returned.

    config  PEFT does not save this: pass the config of a saved adapter through here, too, before it is loaded
    model   needed for ``target_modules="all-linear"``, of which PEFT itself finds nn.Linear only
    Raises InvalidArgumentError for what reads or changes the weight itself, such as DoRA.
    """
    from .lora import pack_aware

    return pack_aware(config, model)


__all__ = ["RegistryConfig", "RegistryQuantizer", "load", "lora_config"]
