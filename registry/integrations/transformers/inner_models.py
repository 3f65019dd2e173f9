"""The models of transformers within a module: itself, or what PEFT, data parallelism or a user's module is around."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel


def pretrained(model: torch.nn.Module) -> dict[str, PreTrainedModel]:
    """By their names in a module, the models of transformers that are part of no other one; "" names itself."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, PreTrainedModel)}
    inner = {id(part) for module in found.values() for part in module.modules() if part is not module}
    return {name: module for name, module in found.items() if id(module) not in inner}
