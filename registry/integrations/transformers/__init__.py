"""The registry inside Hugging Face transformers (5.x): importing this registers what transformers can look up."""

from __future__ import annotations

from .quantization import RegistryConfig, load, lora_config

__all__ = ["RegistryConfig", "load", "lora_config"]
