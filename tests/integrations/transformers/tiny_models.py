"""Small random models of the families that ``apply`` is tried on."""

from __future__ import annotations

import inspect
from typing import Any

import torch

_COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "first_k_dense_replace": 1,
}  # fmt: skip
"""Of a mixture whose attention caches latent vectors, without its groups of experts."""

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "gemma": ("GemmaConfig", {"head_dim": 16}),
    "gemma2": ("Gemma2Config", {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16}),
    "mistral": ("MistralConfig", {"sliding_window": 8}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "phi": ("PhiConfig", {}),
    "phi3": ("Phi3Config", {}),
    "gpt2": ("GPT2Config", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "deepseek_v3": ("DeepseekV3Config", {**_LATENT, "n_group": 2, "topk_group": 1}),
    "glm4": ("Glm4Config", {"head_dim": 16}),
    "olmo2": ("Olmo2Config", {}),
}  # fmt: skip
"""Name of a family -> the class of its config, and what differs from ``_COMMON``."""

LATENT: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v2": ("DeepseekV2Config", {**_LATENT, "n_group": 2, "topk_group": 1, "topk_method": "greedy"}),
    "glm4_moe_lite": ("Glm4MoeLiteConfig", {**_LATENT, "n_group": 2, "topk_group": 1}),
    "longcat_flash": (
        "LongcatFlashConfig",
        {
            "num_layers": 1, "ffn_hidden_size": 96, "expert_ffn_hidden_size": 32, "moe_topk": 2, "n_routed_experts": 4,
            "zero_expert_num": 2, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
            "v_head_dim": 16, "num_key_value_heads": 4, "head_dim": 8,
        },
    ),
    "minicpm3": (
        "MiniCPM3Config",
        {
            "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16, "v_head_dim": 16,
        },
    ),
    "youtu": (
        "YoutuConfig",
        {
            "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16, "v_head_dim": 16,
        },
    ),
}  # fmt: skip
"""Other families whose attention caches latent vectors, DeepSeek-V3's form."""


def tiny(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A causal language model of the family with random weights, in evaluation mode."""
    name, own = {**CONFIGS, **LATENT}[family]
    import transformers

    config = getattr(transformers, name)(**{**_COMMON, **own, **changes})
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager")
    return model.eval()


def cache_name(model: Any) -> str:
    """The name of a forward's argument that is the cache; it differs from version to version."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def prompt(batch: int = 2, length: int = 11) -> torch.Tensor:
    """Random tokens [batch, length]."""
    return torch.randint(3, 96, (batch, length), generator=torch.Generator().manual_seed(1))
