"""The models of transformers within a module: itself, or what PEFT, data parallelism or a user's module is around."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel


def pretrained(model: torch.nn.Module) -> dict[str, PreTrainedModel]:
    """Models of transformers in a module that are part of no other one, by their names; "" names the module itself."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, PreTrainedModel)}
    inner = {id(part) for module in found.values() for part in module.modules() if part is not module}
    return {name: module for name, module in found.items() if id(module) not in inner}
