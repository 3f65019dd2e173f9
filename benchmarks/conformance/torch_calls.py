"""Calls of torch's functions as calls of the registry's ops, by the names of OpInfo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from .counted_calls import ours as call


def _add(x: Any, y: Any, **options: Any) -> Any:
    return call("vector_add", x, y, **options)


def _square(x: torch.Tensor) -> Any:
    return call("square", x)


def _gelu(x: torch.Tensor, approximate: str = "none") -> Any:
    return call("gelu", x, approximate)


def _silu(x: torch.Tensor) -> Any:
    """silu as its product with ones: the registry has no op that activates without a product."""
    wide = x if x.dim() else x[None]
    return call("silu_and_mul", torch.cat((wide, torch.ones_like(wide)), -1)).view(x.shape)


def _softmax(x: torch.Tensor, dim: int, **options: Any) -> Any:
    return call("softmax", x, dim, **options)


def _softmax_backward(grad_y: torch.Tensor, y: torch.Tensor, dim: int, dtype: torch.dtype) -> Any:
    return call("softmax_backward", grad_y, y, dim).to(dtype)


def _rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    return call("rms_norm", x, weight, eps, normalized_shape=normalized_shape)


def _layer_norm(x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    return call("layer_norm", x, weight, bias, eps, normalized_shape=normalized_shape)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    return call("linear", x, weight, bias)


def _mm(x: torch.Tensor, other: torch.Tensor) -> Any:
    return call("linear", x, other.mT)


def _cross_entropy(logits: torch.Tensor, target: torch.Tensor, **options: Any) -> Any:
    return call("cross_entropy", logits, target, **options)[0]


def _embedding(weight: torch.Tensor, indices: torch.Tensor, **options: Any) -> Any:
    return call("embedding", indices, weight, **options)


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    enable_gqa: bool = False,
    **options: Any,
) -> Any:
    """attention with heads after the length, a mask of four dimensions, and torch's causal mask from the first key on.

    ``enable_gqa`` is what the op does anyway.
    """
    del enable_gqa
    if dropout_p:
        options["dropout_p"] = dropout_p
    if is_causal and q.shape[-2] != k.shape[-2]:
        attn_mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    elif is_causal:
        options["causal"] = True
    if attn_mask is not None:
        mask = attn_mask[:, None] if q.dim() == 3 and attn_mask.dim() == 3 else attn_mask
        options["mask"] = mask.expand(*(1,) * (4 - mask.dim()), *mask.shape[:-2], q.shape[-2], k.shape[-2])
    heads = [(one[:, None] if one.dim() == 3 else one).transpose(1, 2) for one in (q, k, v)]
    out = call("attention", *heads, **options)[0].transpose(1, 2)
    return out[:, 0] if q.dim() == 3 else out


CALLS: Mapping[str, Callable[..., Any]] = {
    "_softmax_backward_data": _softmax_backward,
    "add": _add,
    "mm": _mm,
    "nn.functional.cross_entropy": _cross_entropy,
    "nn.functional.embedding": _embedding,
    "nn.functional.gelu": _gelu,
    "nn.functional.layer_norm": _layer_norm,
    "nn.functional.linear": _linear,
    "nn.functional.rms_norm": _rms_norm,
    "nn.functional.scaled_dot_product_attention": _attention,
    "nn.functional.silu": _silu,
    "softmax": _softmax,
    "square": _square,
}
"""OpInfo's name -> the call that its samples' input, arguments and keyword arguments become."""

WITHOUT_GRADIENT = frozenset({"_softmax_backward_data"})
"""Backward ops, which have no backward of their own; torch's have."""
