"""What a config.json leaves to the code of its model: norms, biases, gates. By model_type, in one table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """The structure that models of one ``model_type`` share; the defaults are Llama's.

    ``query_norm``: each head of queries and keys is normalised. ``sandwich``: the outputs of attention and of the MLP
    are normalised, too. ``gated``: the MLP multiplies two products. ``layer_norm``: LayerNorm with a bias, not RMSNorm.
    ``parallel``: attention and MLP read one norm. ``biases``: the products that have one where no key says so, of
    ``qkv``, ``out``, ``mlp`` and ``head``. ``window_every``: of so many layers the last sees all keys, where no
    ``layer_types`` say so. ``windowed``: ``sliding_window`` holds without a flag beside it. ``renormalize``: the
    weights of a token's experts add up to 1 where no key says so. ``learnt_positions``: positions have an embedding of
    their own. ``fused``: queries, keys and values are one layer of the model itself, and so are gate and up.
    ``conv1d``: linear layers are transformers' Conv1D. ``pairs``: elements of latents that are rotated together stand
    beside each other.
    """

    query_norm: bool = False
    sandwich: bool = False
    gated: bool = True
    layer_norm: bool = False
    parallel: bool = False
    biases: frozenset[str] = frozenset()
    window_every: int = 1
    windowed: bool = True
    renormalize: bool = False
    learnt_positions: bool = False
    fused: bool = False
    conv1d: bool = False
    pairs: bool = False


LLAMA = Family()

FAMILIES = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "phi3": Family(fused=True),
    "mixtral": Family(renormalize=True),
    "qwen2": Family(biases=frozenset({"qkv"}), windowed=False),
    "qwen2_moe": Family(biases=frozenset({"qkv"}), windowed=False),
    "qwen3": Family(query_norm=True, windowed=False),
    "qwen3_moe": Family(query_norm=True, windowed=False),
    "gemma": LLAMA,
    "gemma2": Family(sandwich=True, window_every=2),
    "gemma3_text": Family(sandwich=True, query_norm=True, window_every=6),
    "gemma3": Family(sandwich=True, query_norm=True, window_every=6),
    "phi": Family(gated=False, layer_norm=True, parallel=True, biases=frozenset({"qkv", "out", "mlp", "head"})),
    "gpt2": Family(
        gated=False,
        layer_norm=True,
        biases=frozenset({"qkv", "out", "mlp"}),
        learnt_positions=True,
        fused=True,
        conv1d=True,
    ),
    "deepseek_v2": Family(pairs=True),
    "deepseek_v3": Family(renormalize=True),
}
