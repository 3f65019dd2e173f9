"""RegistryConfig beside a checkpoint of another method: transformers' rule which of two configs is used.

transformers refuses a ``quantization_config`` of another class than the checkpoint's own. Where its rule cannot be
replaced, ``load`` still loads such checkpoints.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

from transformers.quantizers.auto import AutoHfQuantizer

from .checkpoints import FOREIGN, method_of
from .config import RegistryConfig


def accept_registry_config() -> None:
    """Let a RegistryConfig load checkpoints of FOREIGN methods; every other pair of configs is merged as before."""
    plain = getattr(AutoHfQuantizer, "merge_quantization_configs", None)
    if plain is None or getattr(plain, "accepts_registry_config", False):
        return

    @functools.wraps(plain)
    def merge_quantization_configs(quantization_config: Any, quantization_config_from_args: Any) -> Any:
        given = quantization_config_from_args
        if isinstance(given, RegistryConfig) and method_of(quantization_config) in FOREIGN:
            return merged(quantization_config, given)
        return plain(quantization_config, given)

    merge_quantization_configs.accepts_registry_config = True  # type: ignore[attr-defined]
    AutoHfQuantizer.merge_quantization_configs = staticmethod(merge_quantization_configs)  # type: ignore[method-assign, unused-ignore]


def merged(settings: Any, given: RegistryConfig) -> RegistryConfig:
    """The checkpoint's own settings with ``given.modules_to_not_convert``; a warning if it asks for other bits."""
    config = RegistryConfig.of_checkpoint(settings, given.modules_to_not_convert)
    if config.bits != given.bits:
        warnings.warn(
            f"RegistryConfig(bits={given.bits}): the checkpoint is already quantised, to {config.bits} bits",
            stacklevel=2,
        )
    return config
