"""The registry inside Hugging Face transformers (5.x): importing this registers what transformers can look up."""

from __future__ import annotations

from .applying import apply, restore
from .attention import registry_attention
from .quantization import RegistryConfig, load, lora_config
from .report import ApplyReport

__all__ = ["ApplyReport", "RegistryConfig", "apply", "load", "lora_config", "registry_attention", "restore"]
