"""The models of the benchmark by way: as transformers has them, by ``apply``, with other projects' layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import torch
import transformers

from registry.integrations.transformers import apply
from registry.integrations.transformers.applying import WeightFormat

from . import peers

LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
}
SMALL = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
}
HEAD = "+head"
"""What a way's name ends in where the output layer is packed, too."""
NAMES = ("plain", "apply", *get_args(WeightFormat), *peers.PEERS)
"""All ways, but for ``HEAD``."""


def is_way(name: str) -> bool:
    """False for a name that stands for no model."""
    return name.removesuffix(HEAD) in NAMES and name not in ("plain" + HEAD, "apply" + HEAD)


def model_of(way: str, sizes: dict[str, Any], layers: int, device: torch.device) -> Any:
    """The model of a way; equal weights for all. Raises ImportError for a peer that is not installed."""
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=layers)
    torch.manual_seed(0)
    with device:
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()
    name, head = way.removesuffix(HEAD), way.endswith(HEAD)
    if name in peers.PEERS:
        peers.replace_linears(name, model, lm_head=head)
    elif name != "plain":
        report = apply(model, quantize=None if name == "apply" else name, lm_head=head)  # type: ignore[arg-type]
        print(f"{way}:\n{report}", flush=True)
    return model


def why_not(way: str, fault: BaseException) -> str:
    """A line for a way whose model cannot be made."""
    name = way.removesuffix(HEAD)
    if isinstance(fault, ModuleNotFoundError) and name in peers.INSTALL:
        return f"no module {fault.name}: pip install {peers.INSTALL[name]}"
    return told(fault)


def told(fault: BaseException) -> str:
    """The kind and first line of a fault."""
    return f"{type(fault).__name__}: {fault}".splitlines()[0][:200]


def settings_of(way: str) -> Mapping[str, Any]:
    """What Inductor's configuration is while a way's model is compiled, beside its defaults."""
    return peers.SETTINGS.get(way.removesuffix(HEAD), {})
