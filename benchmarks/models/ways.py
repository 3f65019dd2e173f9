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
MIXTRAL = {**LLAMA, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}
DEEPSEEK = {
    "hidden_size": 7168,
    "intermediate_size": 2048,
    "first_k_dense_replace": 1 << 30,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "vocab_size": 1024,
    "max_position_embeddings": 8192,
}
MODELS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", LLAMA),
    "mixtral": ("MixtralConfig", MIXTRAL),
    "deepseek": ("DeepseekV3Config", DEEPSEEK),
}
"""Name of a model -> the class of its configuration, and its sizes: Llama-3.1-8B's, Mixtral-8x7B's, and DeepSeek-V3's
attention with a small dense MLP and vocabulary."""
SMALL = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
}
SMALL_LATENTS = {**DEEPSEEK, **SMALL, "num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 64}
HEAD = "+head"
"""What a way's name ends in where the output layer is packed, too."""
NAMES = ("plain", "apply", *get_args(WeightFormat), *peers.PEERS)
"""All ways, but for ``HEAD``."""


def is_way(name: str) -> bool:
    """False for a name that stands for no model."""
    return name.removesuffix(HEAD) in NAMES and name not in ("plain" + HEAD, "apply" + HEAD)


def model_of(way: str, model: str, layers: int, device: torch.device, *, small: bool) -> Any:
    """The model of a way; equal weights for all. Raises ImportError for a peer that is not installed."""
    kind, sizes = MODELS[model]
    if small:
        sizes = SMALL_LATENTS if sizes is DEEPSEEK else SMALL
    config = getattr(transformers, kind)(**sizes, num_hidden_layers=layers)
    torch.manual_seed(0)
    with device:
        made = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()
    name, head = way.removesuffix(HEAD), way.endswith(HEAD)
    if name in peers.PEERS:
        peers.replace_linears(name, made, lm_head=head)
    elif name != "plain":
        report = apply(made, quantize=None if name == "apply" else name, lm_head=head)  # type: ignore[arg-type]
        print(f"{way}:\n{report}", flush=True)
    return made


def why_not(way: str, fault: BaseException) -> str:
    """A line for a way whose model cannot be made."""
    name = way.removesuffix(HEAD)
    if isinstance(fault, ModuleNotFoundError) and name in peers.INSTALL:
        return f"no module {fault.name}: pip install {' '.join(peers.INSTALL[name])}"
    return told(fault)


def told(fault: BaseException) -> str:
    """The kind and first line of a fault."""
    return f"{type(fault).__name__}: {fault}".splitlines()[0][:200]


def settings_of(way: str) -> Mapping[str, Any]:
    """What Inductor's configuration is while a way's model is compiled, beside its defaults."""
    return peers.SETTINGS.get(way.removesuffix(HEAD), {})
