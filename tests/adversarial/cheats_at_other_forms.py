"""A plugin file of implementations that are wrong for a form of a call that its inputs do not have, and honest ones."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import registry
from registry.artifact import Built
from registry.contract import as_tuple
from registry.contracts import ATTENTION, GROUPED_GEMM, KV_CACHE_APPEND, RMS_NORM, ROTARY_EMBEDDING
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config

sys.path.append(str(Path(__file__).parent))
from kinds import implementations_in

KERNEL_REGISTRY_API = 1


class Form(Implementation):
    """Runs ``write`` of a subclass."""

    device_types = frozenset({"cpu"})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            self.write(outputs, *arguments)

        return run

    def write(self, outputs: Tensors, *arguments: Any) -> None:
        raise NotImplementedError


# --- ranks ---


class Norm(Form):
    """rms_norm of as many rows as a subclass counts."""

    op = "rms_norm"

    def write(self, outputs: Tensors, *arguments: Any) -> None:
        x, weight, eps = arguments
        rows = self.rows(x)
        made = RMS_NORM.reference(x.reshape(-1, x.shape[-1])[:rows], weight, eps)
        outputs[0].view(-1, x.shape[-1])[:rows] = made

    def rows(self, x: torch.Tensor) -> int:
        return x.shape[:-1].numel()


class HonestNorm(Norm):
    name = "form.norm"


class RowsOfTheFirstDimension(Norm):
    """Takes the first size for the number of rows."""

    name = "form.first_size"

    def rows(self, x: torch.Tensor) -> int:
        return x.shape[0]


class RowsOfThreeDimensions(Norm):
    """Knows two dimensions and three."""

    name = "form.three_dims"

    def rows(self, x: torch.Tensor) -> int:
        return x.shape[0] * x.shape[1] if x.dim() >= 3 else x.shape[0]


class EpsilonOrDefault(Norm):
    """Takes an epsilon of 0 for none."""

    name = "form.eps_or"

    def write(self, outputs: Tensors, *arguments: Any) -> None:
        x, weight, eps = arguments
        super().write(outputs, x, weight, eps or 1e-6)


class Add(Form):
    op = "vector_add"
    mixed = True

    def write(self, outputs: Tensors, *arguments: Any) -> None:
        x, y = arguments
        torch.add(x, y, out=outputs[0])


class HonestAdd(Add):
    name = "form.add"


class LengthOfTheFirst(Add):
    """Takes the length of x for the number of its elements."""

    name = "form.length"

    def write(self, outputs: Tensors, *arguments: Any) -> None:
        x, y = arguments
        is_written = torch.arange(x.numel()).view(x.shape) < len(x)
        outputs[0].copy_(torch.where(is_written, x + y, outputs[0]))


class ConvertsTheSecond(Add):
    """Converts y to the dtype of x."""

    name = "form.converts"

    def write(self, outputs: Tensors, *arguments: Any) -> None:
        x, y = arguments
        outputs[0].copy_(x + y.to(x.dtype))


class ConvertsTheFirst(Add):
    """Converts x to the dtype of y."""

    name = "form.converts_first"

    def write(self, outputs: Tensors, *arguments: Any) -> None:
        x, y = arguments
        outputs[0].copy_(x.to(y.dtype) + y)


class DoublesTheSame(Add):
    """Takes tensors that begin at one address for one tensor."""

    name = "form.same_address"

    def write(self, outputs: Tensors, *arguments: Any) -> None:
        x, y = arguments
        torch.add(x, x if x.data_ptr() == y.data_ptr() else y, out=outputs[0])


class ViewsHaveAnOffset(Add):
    """Takes what begins where its storage does for row-major."""

    name = "form.offset"

    def write(self, outputs: Tensors, *arguments: Any) -> None:
        torch.add(*map(self.read, arguments), out=outputs[0])

    def read(self, x: torch.Tensor) -> torch.Tensor:
        if x.storage_offset() or x.untyped_storage().nbytes() < x.nbytes:
            return x
        return x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride())


class WhatFillsItsStorage(ViewsHaveAnOffset):
    """Takes what fills its storage for row-major."""

    name = "form.fills"

    def read(self, x: torch.Tensor) -> torch.Tensor:
        return super().read(x) if x.untyped_storage().nbytes() == x.nbytes else x


# --- softmax ---


class Softmax(Form):
    op = "softmax"

    def write(self, outputs: Tensors, *arguments: Any) -> None:
        x, dim = arguments
        outputs[0].copy_(torch.softmax(x, self.taken(x, dim)))

    def taken(self, x: torch.Tensor, dim: int) -> int:
        return dim


class HonestSoftmax(Softmax):
    name = "form.softmax"


class FirstOrLast(Softmax):
    """Knows the last dimension, and takes every other for the first."""

    name = "form.first_or_last"

    def taken(self, x: torch.Tensor, dim: int) -> int:
        return -1 if dim in (-1, x.dim() - 1) else 0


class LastIsNegative(Softmax):
    """Knows the last dimension by -1 alone."""

    name = "form.negative"

    def taken(self, x: torch.Tensor, dim: int) -> int:
        return -1 if dim == -1 else 0


# --- indices ---


def _as_int64(indices: torch.Tensor) -> torch.Tensor:
    """The low words of integers that are taken for int64."""
    words = indices.reshape(-1).contiguous().view(torch.int32)
    return words[torch.arange(indices.numel()) * 2 % len(words)].view(indices.shape).long()


def _as_int32(indices: torch.Tensor) -> torch.Tensor:
    """Words of integers that are taken for int32."""
    return indices.reshape(-1).contiguous().view(torch.int32)[: indices.numel()].view(indices.shape)


class Embedding(Form):
    op = "embedding"

    def write(self, outputs: Tensors, *arguments: Any) -> None:
        indices, weight, _ = arguments
        outputs[0].copy_(weight[self.indices(indices)])

    def indices(self, indices: torch.Tensor) -> torch.Tensor:
        return indices.long()


class HonestEmbedding(Embedding):
    name = "form.embedding"


class IndicesOf64Bits(Embedding):
    name = "form.int64"

    def indices(self, indices: torch.Tensor) -> torch.Tensor:
        return _as_int64(indices)


class PaddingIsGiven(Embedding):
    """Computes with the padding index, which may be None."""

    name = "form.padding"

    def write(self, outputs: Tensors, *arguments: Any) -> None:
        _, weight, padding = arguments
        assert int(padding) < len(weight)
        super().write(outputs, *arguments)


class Append(Form):
    op = "kv_cache_append"

    def write(self, outputs: Tensors, *arguments: Any) -> None:
        key, value, key_cache, value_cache, slots, *scales = arguments
        KV_CACHE_APPEND.reference(key, value, key_cache, value_cache, slots, *scales)


class HonestAppend(Append):
    name = "form.append"


class SlotsOf64Bits(Append):
    name = "form.slots64"

    def write(self, outputs: Tensors, *arguments: Any) -> None:
        key, value, key_cache, value_cache, slots, *scales = arguments
        super().write(outputs, key, value, key_cache, value_cache, _as_int64(slots), *scales)


class WritesPadding(Append):
    """Writes as many tokens as there are keys, those of padding to the slots of others."""

    name = "form.padded_tokens"

    def write(self, outputs: Tensors, *arguments: Any) -> None:
        key, value, key_cache, value_cache, slots, *scales = arguments
        super().write(outputs, *arguments)
        more = len(key) - len(slots)
        if more:
            KV_CACHE_APPEND.reference(key[-more:], value[-more:], key_cache, value_cache, slots[:more], *scales)


class IndexesTheScale(Append):
    name = "form.scalar_scale"

    def write(self, outputs: Tensors, *arguments: Any) -> None:
        key, value, key_cache, value_cache, slots, *scales = arguments
        given = [scale if scale is None else scale[0] for scale in scales]
        super().write(outputs, key, value, key_cache, value_cache, slots, *given)


class Grouped(Form):
    op = "grouped_gemm"

    def write(self, outputs: Tensors, *arguments: Any) -> None:
        outputs[0].copy_(GROUPED_GEMM.reference(*arguments))


class HonestGrouped(Grouped):
    name = "form.grouped"


class OffsetsOf32Bits(Grouped):
    name = "form.offsets32"

    def write(self, outputs: Tensors, *arguments: Any) -> None:
        x, weights, offsets = arguments
        super().write(outputs, x, weights, _as_int32(offsets))


class Rotary(Form):
    """Rotates head by head."""

    op = "rotary_embedding"

    def write(self, outputs: Tensors, *arguments: Any) -> None:
        positions, query, key, size, *rest = arguments
        for x in (query, key):
            is_apart = x.dim() == positions.dim() + 2
            for head in range(self.heads(x, size, is_apart=is_apart)):
                one = x[..., head, :] if is_apart else x[..., head * size : (head + 1) * size]
                ROTARY_EMBEDDING.reference(positions, one, one[..., :0], size, *rest)

    def heads(self, x: torch.Tensor, size: int, *, is_apart: bool) -> int:
        return x.shape[-2] if is_apart else x.shape[-1] // size


class HonestRotary(Rotary):
    name = "form.rotary"


class HeadsOfARow(Rotary):
    """As many heads as the last dimension has room for."""

    name = "form.heads"

    def heads(self, x: torch.Tensor, size: int, *, is_apart: bool) -> int:
        return x.shape[-1] // size


# --- attention ---


class Attention(Form):
    op = "attention"

    def write(self, outputs: Tensors, *arguments: Any) -> None:
        for output, one in zip(outputs, as_tuple(ATTENTION.reference(*arguments)), strict=True):
            output.copy_(one)


class HonestAttention(Attention):
    name = "form.attention"


class ScaleIsGiven(Attention):
    """Multiplies by the scale, where none is 1."""

    name = "form.scale"

    def write(self, outputs: Tensors, *arguments: Any) -> None:
        q, k, v, mask, causal, scale, *rest = arguments
        super().write(outputs, q, k, v, mask, causal, 1.0 if scale is None else scale, *rest)


class ScaleOrDefault(Attention):
    """Takes a scale of 0 for none."""

    name = "form.scale_or"

    def write(self, outputs: Tensors, *arguments: Any) -> None:
        q, k, v, mask, causal, scale, *rest = arguments
        super().write(outputs, q, k, v, mask, causal, scale or None, *rest)


class KeysAreValues(Attention):
    """Takes values that begin at the address of the keys for these."""

    name = "form.keys_are_values"

    def write(self, outputs: Tensors, *arguments: Any) -> None:
        q, k, v, *rest = arguments
        super().write(outputs, q, k, k if v.data_ptr() == k.data_ptr() else v, *rest)


@registry.implements("rms_norm")
def rms_norm_implementations() -> Iterable[Implementation]:
    """Rows of other ranks."""
    return implementations_in(__name__, "rms_norm")


@registry.implements("vector_add")
def vector_add_implementations() -> Iterable[Implementation]:
    """Lengths, dtypes and addresses."""
    return implementations_in(__name__, "vector_add")


@registry.implements("softmax")
def softmax_implementations() -> Iterable[Implementation]:
    """Reduced dimensions."""
    return implementations_in(__name__, "softmax")


@registry.implements("embedding")
def embedding_implementations() -> Iterable[Implementation]:
    """Indices."""
    return implementations_in(__name__, "embedding")


@registry.implements("kv_cache_append")
def kv_cache_append_implementations() -> Iterable[Implementation]:
    """Slots, tokens of padding and scales."""
    return implementations_in(__name__, "kv_cache_append")


@registry.implements("grouped_gemm")
def grouped_gemm_implementations() -> Iterable[Implementation]:
    """Offsets."""
    return implementations_in(__name__, "grouped_gemm")


@registry.implements("attention")
def attention_implementations() -> Iterable[Implementation]:
    """Scales and masks."""
    return implementations_in(__name__, "attention")


@registry.implements("rotary_embedding")
def rotary_embedding_implementations() -> Iterable[Implementation]:
    """Heads."""
    return implementations_in(__name__, "rotary_embedding")
