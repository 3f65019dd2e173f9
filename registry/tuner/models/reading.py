"""Reads a config.json as the description of one device's part of a decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import InvalidArgumentError
from .description import Activation, Attention, Decoder, Experts, FeedForward, Layer, Product, Rotary
from .families import FAMILIES, LLAMA, Family
from .keys import Keys
from .sharing import DeviceShare

_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_LOGITS = ("final_logit_softcapping", "logits_soft_cap", "logits_scaling", "logit_scale", "lm_head_multiplier")
"""Keys of models that scale or cap their logits."""
_SLIDING = "sliding_attention"
_MOST_LAYERS = 10_000


def decoder_of(config: Mapping[str, Any], name: str, devices: int = 1) -> Decoder:
    """The decoder that a config describes, as one of ``devices`` holds it under tensor parallelism.

    Heads, the width of MLPs and experts, and the vocabulary are divided; a head of keys is held by several devices
    where there are fewer than devices. Raises InvalidArgumentError for a key that is missing or has no meaning, and for
    sizes that ``devices`` does not divide.
    """
    keys = Keys(config, name)
    return _Reading(keys, name, devices).decoder()


class _Reading:
    def __init__(self, keys: Keys, name: str, devices: int) -> None:
        self._keys, self._name, self._share = keys, name, DeviceShare(devices, name)
        self._notes: list[str] = []
        self._family = self._known_family()
        self._hidden = keys.size("hidden_size", "n_embd", "d_model")
        self._heads = keys.size("num_attention_heads", "n_head")
        self._activation = self._read_activation()

    def decoder(self) -> Decoder:
        keys, family = self._keys, self._family
        count, vocabulary = keys.size("num_hidden_layers", "n_layer", most=_MOST_LAYERS), keys.size("vocab_size")
        layer_norm = family.layer_norm or (
            not keys.has("rms_norm_eps") and keys.has("layer_norm_eps", "layer_norm_epsilon")
        )
        return Decoder(
            hidden=self._hidden,
            vocabulary=vocabulary,
            positions=keys.size("n_positions", "max_position_embeddings") if family.learnt_positions else 0,
            layers=tuple(self._layer(number) for number in range(count)),
            head=Product(self._share.rounded_up(vocabulary), self._hidden, "head" in family.biases, dense=True),
            layer_norm=layer_norm,
            sandwich=family.sandwich,
            parallel=family.parallel,
            dtype=keys.text("dtype", "torch_dtype", default="bfloat16"),
            quantized=self._quantized(),
            changes_logits=keys.has(*_LOGITS),
            conv1d=family.conv1d,
            notes=tuple(dict.fromkeys(self._notes)),
        )

    def _known_family(self) -> Family:
        kind = self._keys.model_type
        if kind in FAMILIES:
            return FAMILIES[kind]
        self._notes.append(
            f"model_type {kind!r} is not known: it is read as a decoder like Llama's; registry.record tells what a run"
            " of the model calls"
        )
        return LLAMA

    def _read_activation(self) -> Activation:
        keys = self._keys
        name = keys.text("hidden_activation", "hidden_act", "activation_function", default="")
        if not name:
            raise keys.missing("hidden_act")
        if name not in _ACTIVATIONS:
            self._notes.append(f"activation {name!r}: no op computes it")
        return _ACTIVATIONS.get(name, "")

    def _quantized(self) -> str:
        told = self._keys.part("quantization_config")
        form = {"": told.get("quant_method"), "bits": told.get("bits"), "group size": told.get("group_size")}
        return ", ".join(f"{name} {value}".strip() for name, value in form.items() if value is not None)

    # --- layers

    def _layer(self, number: int) -> Layer:
        keys = self._keys
        attention = self._latent_attention() if keys.has("kv_lora_rank") else self._attention(number)
        count = self._experts_count()
        if count and self._has_experts(number):
            return Layer(attention, self._shared_mlp(), self._experts(count))
        return Layer(attention, self._mlp(self._width()), None)

    def _attention(self, number: int) -> Attention:
        keys, family = self._keys, self._family
        head_dim = keys.size("head_dim", default=self._even(self._hidden, self._heads))
        heads = self._share.of(self._heads, "num_attention_heads")
        kv_heads = self._share.kv_heads(keys, self._heads)
        biased = keys.flag("attention_bias", "qkv_bias", default="qkv" in family.biases)
        out_biased = keys.flag("attention_bias", default="out" in family.biases)
        qkv = [count * head_dim for count in (heads, kv_heads, kv_heads)]
        products = (
            Product.fused(qkv, self._hidden, biased, apart=not family.fused),
            Product(self._hidden, heads * head_dim, out_biased),
        )
        return Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            products=products,
            rotary=None if family.learnt_positions else self._rotary(heads, kv_heads, head_dim),
            span=self._span(number),
            softcap=keys.number("attn_logit_softcapping", default=0.0) > 0.0,
            query_norm=family.query_norm,
        )

    def _rotary(self, heads: int, kv_heads: int, head_dim: int) -> Rotary:
        keys = self._keys
        told = keys.part("rope_parameters").get("partial_rotary_factor", 1.0)
        factor = keys.number("partial_rotary_factor", default=told if isinstance(told, int | float) else 1.0)
        rotary_dim = int(head_dim * factor)
        if rotary_dim < 2 or rotary_dim > head_dim or rotary_dim % 2:
            raise InvalidArgumentError(
                f"{self._name}: partial_rotary_factor is {factor:g} of a head of {head_dim}",
                hint="expected an even number of rotated elements, at most all",
            )
        return Rotary(heads, kv_heads, head_dim, rotary_dim)

    def _latent_attention(self) -> Attention:
        """DeepSeek's attention: queries, keys and values from latent vectors; every device has the latents whole."""
        keys, hidden = self._keys, self._hidden
        heads = self._share.of(self._heads, "num_attention_heads")
        plain, rotated, value = (keys.size(f"{one}_head_dim") for one in ("qk_nope", "qk_rope", "v"))
        rank, biased = keys.size("kv_lora_rank"), keys.flag("attention_bias", default=False)
        queries = heads * (plain + rotated)
        products = [
            Product(rank + rotated, hidden, biased),
            Product(hidden, heads * value, biased),
        ]
        latents = [rank]
        if keys.has("q_lora_rank"):
            latents.append(keys.size("q_lora_rank"))
            products += [Product(latents[-1], hidden, biased), Product(queries, latents[-1])]
        else:
            products.append(Product(queries, hidden))
        uniform = plain + rotated == value
        if not uniform:
            self._notes.append(
                f"a prompt's attention, keys of {plain + rotated} and values of {value} elements: no op takes them"
            )
        return Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=value,
            products=tuple(products),
            # pairs that become halves, as DeepSeek-V3's, are put in their places before the op
            rotary=Rotary(heads, 1, rotated, rotated, "gptj" if self._family.pairs else "neox"),
            latents=tuple(latents),
            expansion=Product(heads * (plain + value), rank),
            mla_rope=rotated,
            uniform=uniform,
        )

    def _span(self, number: int) -> int | bool:
        """Keys that a token of a layer sees; False for all."""
        keys, family = self._keys, self._family
        if not keys.has("sliding_window") or not keys.flag("use_sliding_window", default=family.windowed):
            return False
        kinds = keys.several("layer_types")
        if kinds:
            slides = number < len(kinds) and kinds[number] == _SLIDING
        else:
            every = keys.size("sliding_window_pattern", "_sliding_window_pattern", default=family.window_every)
            slides = every == 1 or (number + 1) % every != 0
        return keys.size("sliding_window") if slides else False

    # --- MLP and experts

    def _mlp(self, width: int) -> FeedForward:
        keys, family = self._keys, self._family
        own = self._share.of(width, "the width of an MLP")
        biased = keys.flag("mlp_bias", default="mlp" in family.biases)
        halves = [own, own] if family.gated else [own]
        into = Product.fused(halves, self._hidden, biased, apart=not family.fused)
        return FeedForward(own, into, Product(self._hidden, own, biased), self._activation, family.gated)

    def _width(self) -> int:
        keys = self._keys
        if keys.model_type == "gpt2":
            return keys.size("n_inner", default=4 * self._hidden)
        return keys.size("intermediate_size", "ffn_dim")

    def _experts_count(self) -> int:
        return self._keys.size("num_local_experts", "n_routed_experts", "num_experts", default=0) or 0

    def _has_experts(self, number: int) -> bool:
        keys = self._keys
        if number in keys.several("mlp_only_layers") or number < keys.size("first_k_dense_replace", default=0):
            return False
        every = keys.size("decoder_sparse_step", "moe_layer_freq", default=1)
        # Qwen counts layers from 1, DeepSeek from 0
        return (number + keys.has("decoder_sparse_step")) % every == 0

    def _experts(self, count: int) -> Experts:
        keys = self._keys
        grouped = keys.size("n_group", default=1) > 1 or keys.text("topk_method", default="") == "noaux_tc"
        if grouped:
            self._notes.append(
                "the choice of experts by groups, or with a correction: topk_softmax makes none of these"
            )
        scoring = keys.text("scoring_func", default="sigmoid" if keys.model_type == "deepseek_v3" else "softmax")
        known = scoring in {"softmax", "sigmoid"} and not grouped
        return Experts(
            count=count,
            top_k=keys.size("num_experts_per_tok", "top_k"),
            width=self._share.of(keys.size("moe_intermediate_size", "intermediate_size"), "the width of an expert"),
            activation=self._activation,
            scoring=("sigmoid" if scoring == "sigmoid" else "softmax") if known else "",
            renormalize=keys.flag("norm_topk_prob", default=self._family.renormalize),
        )

    def _shared_mlp(self) -> FeedForward | None:
        keys = self._keys
        if keys.has("n_shared_experts"):
            return self._mlp(keys.size("n_shared_experts") * keys.size("moe_intermediate_size"))
        if keys.has("shared_expert_intermediate_size"):
            return self._mlp(keys.size("shared_expert_intermediate_size"))
        return None

    def _even(self, size: int, parts: int) -> int:
        if size % parts and not self._keys.has("head_dim") and not self._keys.has("kv_lora_rank"):
            raise self._keys.missing("head_dim")
        return size // parts
