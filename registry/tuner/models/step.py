"""The problems of a decoder's steps, and how often each is called: a prompt, new tokens one by one, a training step.

Layers of one input are fused, unless they are to stay apart: queries, keys and values, and a gated MLP's gate and up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...contracts.gemm_int4 import filling_group_size, takes
from ...problem import Value, torch_dtype
from .description import Attention, Decoder, Experts, FeedForward, Layer, Product
from .workload import Phase, Workload, phases

Dims = dict[str, Value]
Called = tuple[str, Mapping[str, Value]]
"""An op and the dimensions of a problem."""

CalledKey = tuple[str, tuple[tuple[str, Value], ...]]
"""A ``Called`` that can be counted."""

_PACKED = {"int8": "gemm_int8", "int4": "gemm_w4a16", "int2": "gemm_int2", "int1": "gemm_int1", "nf4": "gemm_nf4"}
"""The op of packed weights with any zero points, and a bias, by the quantisation of the layers.

Weights of 4 bits are multiplied by gemm_int4 where it takes them.
"""
_BY_FOUR_BITS = ("int4", "w4a8")
"""Quantised models whose layers have groups that fill a row where such groups exist."""
_PACKED_EXPERTS = ("int4", "w4a8")
"""Quantised models whose experts have packed weights, and whole activations."""
_SCALED = ("fp8", "w8a8")
"""Quantised models whose weights and activations, of experts too, have a scale for each row."""
_ROOM = 64
"""Tokens that a sequence has room for in problems of rotary_kv_append: its time does not depend on that."""
_ROUNDED = {"fp8": "float8_e4m3fn", "w8a8": "int8", "w4a8": "int8"}
"""What activations are rounded to, by the quantisation of the layers."""


def called(decoder: Decoder, workload: Workload) -> Counter[CalledKey]:
    """Op and dimensions of each problem, with its number of calls in a request, or in a training step."""
    counts: Counter[CalledKey] = Counter()
    for batch in dict.fromkeys(workload.batch):
        for context in dict.fromkeys(workload.context):
            for phase in phases(batch, context, training=workload.training):
                for (op, dims), count in _Step(decoder, workload, phase).calls():
                    counts[op, tuple(dims.items())] += count * phase.times
    return counts


class _Step:
    """The calls of one step."""

    def __init__(self, decoder: Decoder, workload: Workload, phase: Phase) -> None:
        self._decoder, self._workload, self._phase = decoder, workload, phase
        self._dtype, self._tokens = workload.dtype, phase.tokens
        self._training = phase.kind == "training"

    def calls(self) -> Iterator[tuple[Called, int]]:
        """Op and dimensions with their number of calls in this step; a problem may come several times."""
        for layer, count in Counter(self._decoder.layers).items():
            for one in self._layer(layer):
                yield one, count
        for one, count in (*self._ends(), *self._norms()):
            yield one, count

    def _ends(self) -> Iterator[tuple[Called, int]]:
        """The embeddings in front of the layers; the head and the loss behind them."""
        decoder = self._decoder
        tables = (decoder.vocabulary, decoder.positions) if decoder.positions else (decoder.vocabulary,)
        for vocabulary in tables:
            dims: Dims = {"cols": decoder.hidden, "vocabulary": vocabulary, "dtype": self._dtype}
            yield from self._with_backward("embedding", {"rows": self._tokens, **dims})
        head = replace(decoder.head, dense=False) if self._workload.lm_head else decoder.head
        loss: Dims = {"rows": self._tokens, "cols": head.outputs, "reduction": "mean", "dtype": self._dtype}
        if self._training and not decoder.changes_logits:
            fused: Dims = {**loss, "k": head.inputs, "bias": head.bias}
            if self._dtype == "float16":  # its gradients wait for the loss scale
                yield from self._with_backward("fused_linear_cross_entropy", fused)
            else:
                yield ("fused_linear_cross_entropy_gradients", fused), 1
            return
        # a prompt's logits are needed of the last token of each sequence alone
        for one in self._product(head, self._tokens if self._training else self._phase.batch):
            yield one, 1
        if self._training:
            yield from self._with_backward("cross_entropy", {**loss, "weight": False})
        else:
            # of the whole vocabulary, and in float32, as servers draw
            drawn: Dims = {"rows": self._phase.batch, "cols": decoder.vocabulary, "top_k": True, "top_p": True}
            yield ("top_k_top_p_sampling", {**drawn, "dtype": "float32"}), 1

    def _with_backward(self, op: str, dims: Mapping[str, Value]) -> Iterator[tuple[Called, int]]:
        yield (op, dims), 1
        if self._training:
            yield (f"{op}_backward", dims), 1

    def _differentiated(self, op: str, dims: Mapping[str, Value]) -> Iterator[Called]:
        for one, _ in self._with_backward(op, dims):
            yield one

    # --- norms

    def _norms(self) -> Iterator[tuple[Called, int]]:
        """Norms of the residual stream. In inference, one behind an addition to the stream is fused with it."""
        decoder, layers = self._decoder, len(self._decoder.layers)
        rows: Dims = {"rows": self._tokens, "cols": decoder.hidden}
        added = (1 if decoder.parallel else 2) * layers  # all but the first follow an addition
        if decoder.layer_norm:
            dims: Dims = {**rows, "weight": True, "bias": True, "dtype": self._dtype}
            for one in self._differentiated("layer_norm", dims):
                yield one, added + 1
            return
        plain = 1 + (2 * layers if decoder.sandwich else 0) + (added if self._training else 0)
        for one in self._differentiated("rms_norm", {**rows, "dtype": self._dtype}):
            yield one, plain
        if not self._training:
            yield ("fused_add_rms_norm", {**rows, "weight": True, "dtype": self._dtype}), added

    def _norm_of(self, rows: int, cols: int) -> Iterator[Called]:
        yield from self._differentiated("rms_norm", {"rows": rows, "cols": cols, "dtype": self._dtype})

    # --- a layer

    def _layer(self, layer: Layer) -> Iterator[Called]:
        attention = layer.attention
        for product in attention.products:
            yield from self._product(product, self._tokens)
        if attention.expansion is not None and self._phase.kind != "decode":
            yield from self._product(attention.expansion, self._tokens)
        for latent in attention.latents:
            yield from self._norm_of(self._tokens, latent)
        if attention.query_norm:
            for heads in (attention.heads, attention.kv_heads):
                yield from self._norm_of(self._tokens * heads, attention.head_dim)
        yield from self._rotation(attention)
        if attention.mla_rope and self._phase.kind == "decode":
            yield self._latent_decode(attention)
        elif attention.uniform:
            yield from self._attention(attention)
        if layer.mlp is not None:
            yield from self._mlp(layer.mlp)
        if layer.experts is not None:
            yield from self._experts(layer.experts)

    def _rotation(self, attention: Attention) -> Iterator[Called]:
        rotary = attention.rotary
        if rotary is not None:
            sizes: Dims = {"heads": rotary.heads, "kv_heads": rotary.kv_heads, "head_dim": rotary.head_dim}
            kind: Dims = {"rotary_dim": rotary.rotary_dim, "style": rotary.style, "dtype": self._dtype}
            op = "apply_rotary" if self._training else "rotary_embedding"
            yield from self._differentiated(op, {"tokens": self._tokens, **sizes, **kind})
            if self._appends(attention):
                phase = self._phase
                # the room of the real cache takes memory alone, of which each copy of the inputs holds some
                room: Dims = {"batch": phase.batch, "q_len": phase.q_len, "kv_len": max(phase.q_len, _ROOM)}
                yield "rotary_kv_append", {**room, **sizes, **kind, "positions": False}

    def _appends(self, attention: Attention) -> bool:
        """Whether a step rotates and appends at once: to a cache in rows that keeps all keys, whole heads."""
        rotary, rows = attention.rotary, not self._workload.page and not attention.span
        whole = rotary is not None and rotary.rotary_dim == rotary.head_dim and rotary.style == "neox"
        return self._phase.kind == "decode" and rows and whole and attention.uniform and not attention.mla_rope

    def _attention(self, attention: Attention) -> Iterator[Called]:
        phase, page = self._phase, self._workload.page
        dims: Dims = {
            "batch": phase.batch,
            "heads": attention.heads,
            "kv_heads": attention.kv_heads,
            "q_len": phase.q_len,
            "kv_len": phase.context,
            "head_dim": attention.head_dim,
            "span": attention.span,
            "softcap": attention.softcap,
            "dtype": self._dtype,
        }
        if page and not self._training:
            cache: Dims = {"kv_heads": attention.kv_heads, "head_dim": attention.head_dim, "block_size": page}
            yield "kv_cache_append", {"tokens": self._tokens, **cache, "kv_dtype": "auto", "dtype": self._dtype}
        if phase.kind != "decode":
            yield from self._differentiated("attention", {**dims, "causal": True, "mask": "none"})
            if self._training:
                # a traced model cannot look whether its sequences are packed, so that it masks keys instead
                yield from self._differentiated("attention", {**dims, "causal": False, "mask": "bool", "span": False})
            return
        if not page and attention.span:
            # a cache in rows keeps no more keys than its layer's window
            dims["kv_len"] = min(phase.context, int(attention.span))
        rounded = -(-phase.context // page) * page if page else dims["kv_len"]
        yield "attention_decode", {**dims, "kv_len": rounded, "page": page or False, "kv_dtype": "auto"}

    def _latent_decode(self, attention: Attention) -> Called:
        """The absorbed form: all heads of this device share the cache, which every device has whole."""
        page = self._workload.page
        dims: Dims = {"batch": self._phase.batch, "heads": attention.heads, "kv_lora_rank": attention.latents[0]}
        room = -(-self._phase.context // page) * page if page else self._phase.context
        cache: Dims = {"kv_len": room, "rope_dim": attention.mla_rope, "page": page or False, "dtype": self._dtype}
        return "mla_decode", {**dims, **cache}

    def _mlp(self, mlp: FeedForward) -> Iterator[Called]:
        yield from self._product(mlp.into, self._tokens)
        activated = [*self._activated(mlp.activation, mlp.gated, self._tokens, mlp.width)]
        yield from activated
        if self._training and mlp.gated:
            yield from activated[:1]  # computed again for the gradients
        yield from self._product(mlp.back, self._tokens)

    def _activated(self, activation: str, gated: bool, rows: int, cols: int) -> Iterator[Called]:
        approximate: Dims = {"approximate": "tanh" if activation == "gelu_tanh" else "none"}
        sizes: Dims = {"rows": rows, "cols": cols}
        if gated and activation == "silu":
            yield from self._differentiated("silu_and_mul", {**sizes, "dtype": self._dtype})
        elif gated and activation:
            yield from self._differentiated("gelu_and_mul", {**sizes, **approximate, "dtype": self._dtype})
        elif activation.startswith("gelu"):
            yield from self._differentiated("gelu", {"n": rows * cols, **approximate, "dtype": self._dtype})

    def _experts(self, experts: Experts) -> Iterator[Called]:
        hidden, width = self._decoder.hidden, experts.width
        yield from self._product(Product(experts.count, hidden, dense=True), self._tokens)
        if experts.scoring:
            choice: Dims = {"experts": experts.count, "top_k": experts.top_k, "renormalize": experts.renormalize}
            dims: Dims = {"tokens": self._tokens, **choice, "scoring": experts.scoring, "dtype": self._dtype}
            yield from self._differentiated("topk_softmax", dims)
        dense = self._workload.quantize not in (*_PACKED_EXPERTS, *_SCALED)
        if experts.activation and not self._training and dense:
            yield "fused_moe", self._fused(experts)
            return
        rows = self._tokens * experts.top_k
        # a token is rounded once for all of its experts
        for n, k, rounded in ((2 * width, hidden, self._tokens), (hidden, width, rows)):
            if self._workload.quantize in _SCALED:
                yield self._rounding(rounded, k)
            yield from self._grouped({"m": rows, "n": n, "k": k, "experts": experts.count, "routing": "uniform"})
        yield from self._activated(experts.activation, True, rows, width)

    def _fused(self, experts: Experts) -> Dims:
        """The problem of all products of the experts and what is between them."""
        sizes: Dims = {"hidden": self._decoder.hidden, "intermediate": experts.width, "experts": experts.count}
        choice: Dims = {"top_k": experts.top_k, "activation": experts.activation, "routing": "uniform"}
        return {"tokens": self._tokens, **sizes, **choice, "dtype": self._dtype}

    # --- products

    def _product(self, product: Product, m: int) -> Iterator[Called]:
        """The calls of a linear layer, or of the layers that it is fused of."""
        for one in product.separated() if self._workload.separate else (product,):
            yield from self._linear(one, m)

    def _linear(self, product: Product, m: int) -> Iterator[Called]:
        """The calls of one layer: with a quantised weight its op, and what quantises the activations."""
        sizes: Dims = {"m": m, "n": product.outputs, "k": product.inputs}
        kind = "none" if product.dense else self._workload.quantize
        group = min(self._workload.group_size, product.inputs)
        if kind in _BY_FOUR_BITS:
            group = filling_group_size(group, product.inputs)
        if kind == "int4" and takes(torch_dtype(self._dtype), product.inputs, group):
            symmetric = self._workload.symmetric
            yield "gemm_int4", {**sizes, "group_size": group, "bits": 4, "symmetric": symmetric, "dtype": self._dtype}
        elif kind in _PACKED:
            form: Dims = {"group_size": group, "zeros": self._zeros(kind), "act_order": False}
            yield _PACKED[kind], {**sizes, **form, "bias": product.bias, "dtype": self._dtype}
        elif kind in _ROUNDED:
            rounded = _ROUNDED[kind]
            yield self._rounding(m, product.inputs)
            if kind == "w4a8":
                zeros = self._zeros(kind)
                held: Dims = {"group_size": group, "activation": rounded, "zeros": zeros, "act_order": False}
                yield "gemm_w4a8", {**sizes, **held, "static": False, "bias": product.bias, "dtype": self._dtype}
            else:
                scaled: Dims = {"scales": "row", "bias": product.bias, "out_dtype": self._dtype, "dtype": rounded}
                yield "scaled_mm", {**sizes, **scaled}
        else:
            yield from self._differentiated("linear", {**sizes, "bias": product.bias, "dtype": self._dtype})

    def _zeros(self, kind: str) -> str:
        """The kind of zero points of packed weights: none of levels of a codebook.

        In float32 they are taken for any numbers; those of one bit are in float32 whatever the dtype of the scales.
        """
        if self._workload.symmetric or kind == "nf4":
            return "none"
        return "float" if kind == "int1" or self._dtype == "float32" else "integer"

    def _rounding(self, m: int, k: int) -> Called:
        """The call that rounds activations, with a scale for each of ``m`` rows."""
        dims: Dims = {"m": m, "k": k, "group_size": k, "out_dtype": _ROUNDED[self._workload.quantize]}
        return "quantize_per_token", {**dims, "scale": False, "dtype": self._dtype}

    def _grouped(self, dims: Mapping[str, Value]) -> Iterator[Called]:
        if self._workload.quantize in _SCALED:
            rounded = _ROUNDED[self._workload.quantize]
            yield "grouped_scaled_mm", {**dims, "out_dtype": self._dtype, "dtype": rounded}
        elif self._workload.quantize in _PACKED_EXPERTS:
            zeros = self._zeros(self._workload.quantize)
            form: Dims = {"group_size": min(self._workload.group_size, int(dims["k"])), "zeros": zeros}
            yield "grouped_gemm_int4", {**dims, **form, "dtype": self._dtype}
        else:
            yield from self._differentiated("grouped_gemm", {**dims, "dtype": self._dtype})
