"""``load``: a quantised checkpoint of any supported format with packed linear layers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM

from ....errors import InvalidArgumentError
from .checkpoints import FOREIGN, METHOD, method_of
from .config import RegistryConfig

_OF_THE_HUB = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token", "trust_remote_code")
_OF_THE_MODEL = ("dtype", "torch_dtype", "device_map", "quantization_config")


def load(path: str | os.PathLike[str], model_class: Any = AutoModelForCausalLM, **kwargs: Any) -> Any:
    """A model from a GPTQ, AWQ or compressed-tensors checkpoint, or one that was saved with packed layers.

    path         a folder, or a name on the Hub
    model_class  a class with ``from_pretrained``, such as AutoModelForCausalLM
    kwargs       passed on to ``from_pretrained``: dtype, device_map, attn_implementation ... Scales are converted to
                 the model's dtype; ``dtype="auto"`` is the checkpoint's own
    Raises InvalidArgumentError for a folder that is not there, and for a checkpoint that is not quantised, or in a way
    that cannot be loaded.
    """
    _check_path(path)
    kept = {name: kwargs.pop(name) for name in (*_OF_THE_HUB, *_OF_THE_MODEL) if name in kwargs}
    config = kwargs.pop("config", None)
    if config is None:
        hub = {name: value for name, value in kept.items() if name in _OF_THE_HUB}
        # as from_pretrained does, of which settings of the config such as num_labels are arguments, too
        config, kwargs = AutoConfig.from_pretrained(path, return_unused_kwargs=True, **hub, **kwargs)
    settings = getattr(config, "quantization_config", None)
    if settings is None:
        settings = getattr(config.get_text_config(decoder=True), "quantization_config", None)
    method = method_of(settings)
    if method not in (*FOREIGN, METHOD):
        given = f"has quant_method={method!r}" if method else "is not quantised"
        raise InvalidArgumentError(
            f"load: {path} {given}",
            hint=f"expected {', '.join((*FOREIGN, METHOD))}; to pack a checkpoint in full precision, pass"
            " quantization_config=RegistryConfig(bits=4) to from_pretrained",
        )
    if method in FOREIGN:
        config.quantization_config = RegistryConfig.of_checkpoint(settings).to_dict()
    return model_class.from_pretrained(path, config=config, **kwargs, **kept)


def _check_path(path: Any) -> None:
    """Raise InvalidArgumentError for what is no path or text, and a path where no folder is; names are the Hub's."""
    if not isinstance(path, str | os.PathLike):
        raise InvalidArgumentError(f"load: got a {type(path).__name__}", hint="expected a folder, or a name on the Hub")
    text = os.fspath(path)
    is_path = isinstance(path, os.PathLike) or text.startswith((os.sep, ".", "~")) or text.count("/") > 1
    if is_path and not Path(text).is_dir():
        raise InvalidArgumentError(f"load: {text}: no such folder", hint="expected a folder, or a name on the Hub")
