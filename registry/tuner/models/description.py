"""What a decoder is made of: its layers, their products and attention, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", ""]
"""The activation of an MLP: silu, gelu by erf or by tanh, or "" for one that no op computes."""


@dataclass(frozen=True)
class Product:
    """A linear layer: ``outputs`` by ``inputs``, both of one device.

    ``dense``: its weight is not quantised. ``parts``: outputs of the layers of one input that it is fused of, if the
    model itself has them apart.
    """

    outputs: int
    inputs: int
    bias: bool = False
    dense: bool = False
    parts: tuple[int, ...] = ()

    @classmethod
    def fused(cls, parts: Sequence[int], inputs: int, bias: bool, *, apart: bool) -> Product:
        """The product of several outputs. ``apart``: the model has a layer for each."""
        return cls(sum(parts), inputs, bias, parts=tuple(parts) if apart else ())

    def separated(self) -> tuple[Product, ...]:
        """The layers as the model has them."""
        return tuple(Product(part, self.inputs, self.bias, self.dense) for part in self.parts) or (self,)


@dataclass(frozen=True)
class Rotary:
    """The rotation of queries and keys: the elements of a head that are rotated, and how they are paired."""

    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    style: Literal["neox", "gptj"] = "neox"


@dataclass(frozen=True)
class Attention:
    """One layer's attention, of heads of this device.

    ``span``: keys that a token sees, its own among them; False for all. ``latents``: sizes of latent vectors that are
    normalised (DeepSeek's), the first of them what keys and values are made of, and ``mla_rope`` the rotated elements
    beside it in the cache. ``expansion``: the product that makes keys and values of latents, which a decode step takes
    into the query and the output. ``uniform``: keys and values have one size, so that the attention ops take them.
    """

    heads: int
    kv_heads: int
    head_dim: int
    products: tuple[Product, ...]
    rotary: Rotary | None
    span: int | bool = False
    softcap: bool = False
    query_norm: bool = False
    latents: tuple[int, ...] = ()
    mla_rope: int = 0
    expansion: Product | None = None
    uniform: bool = True


@dataclass(frozen=True)
class FeedForward:
    """An MLP: the product into ``width`` elements (twice as many where it is gated), the activation, the product back.

    ``width`` is one device's.
    """

    width: int
    into: Product
    back: Product
    activation: Activation
    gated: bool


@dataclass(frozen=True)
class Experts:
    """Experts of a layer, of each of which a device has ``width`` elements.

    ``scoring`` is "" where the choice of experts is none that ``topk_softmax`` makes.
    """

    count: int
    top_k: int
    width: int
    activation: Activation
    scoring: Literal["softmax", "sigmoid", ""]
    renormalize: bool


@dataclass(frozen=True)
class Layer:
    """A decoder layer: attention, and an MLP, experts, or experts and the MLP that all tokens go through."""

    attention: Attention
    mlp: FeedForward | None
    experts: Experts | None


@dataclass(frozen=True)
class Decoder:
    """A decoder of one device: embedding, layers, norms and head.

    ``quantized``: how its checkpoint holds weights, "" where in full. ``changes_logits``: the head's outputs are scaled
    or capped before the loss. ``conv1d``: layers but the head are transformers' Conv1D. ``notes`` tell
    what could not be described.
    """

    hidden: int
    vocabulary: int
    positions: int
    layers: tuple[Layer, ...]
    head: Product
    layer_norm: bool
    sandwich: bool
    parallel: bool
    dtype: str
    quantized: str = ""
    changes_logits: bool = False
    conv1d: bool = False
    notes: tuple[str, ...] = ()
