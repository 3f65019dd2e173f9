"""Attention over transformers' caches: importing this registers ``attn_implementation="registry"``.

Keys and values are not expanded for grouped heads. Where a single new token sees all earlier ones, attention_decode
reads a cache as far as it is filled, also a StaticCache, whose masks transformers would make as long as the cache.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import causal_mask_function, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ...api import call
from ...dispatch.torch_side.states import gradient_needed
from ...errors import RegistryError
from ...tracing import refuse
from .collecting import asked_for_weights
from .forwards.cache_appends import APPENDS, AppendProbe
from .forwards.full_lengths import full_lengths
from .forwards.latents.steps import LATENTS

NAME = "registry"

_UNKNOWN = ("position_bias", "s_aux", "head_mask", "cu_seq_lens_q", "indices")
"""Arguments of attention functions that the ops do not take."""


def registry_attention(  # noqa: PLR0913
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention of ``query`` [batch, heads, q_len, head_dim] over ``key`` and ``value`` with kv_heads and kv_len.

    ``attention_mask`` is None for causal attention or all keys, what ``registry_mask`` returned, or any mask of four
    dimensions. Returns [batch, q_len, heads, head_dim] and None. With dropout, a mask that learns, and arguments that
    the ops do not take, transformers' own function of torch computes it, flex_attention for logits with a cap, and the
    model's own eager function for sinks, and for ``output_attentions=True``, of which weights
    [batch, heads, q_len, kv_len] are returned.
    Raises RegistryError for the keys that an indexer has chosen (DeepSeek-V3.2), and if there is no eager function.
    """
    if APPENDS.step is not None:
        query = APPENDS.step.query(query)
        if isinstance(APPENDS.step, AppendProbe):
            return query.transpose(1, 2), None
    weights = asked_for_weights(others)
    # a mask that is computed from the activations, as Doge's, learns; attention's gradient has none of its mask
    learns = attention_mask is not None and gradient_needed((attention_mask,))
    unknown = weights or learns or any(others.get(name) is not None for name in _UNKNOWN)
    if LATENTS.step is not None:
        usual = not (dropout or unknown or softcap or sliding_window) and _is_causal(module, is_causal)
        found = LATENTS.step.attend(query, key, value, attention_mask, scaling if usual else None)
        if found is not None:
            return found, None
        key, value = LATENTS.step.expanded(key, value)
    if dropout or key.shape[-1] != value.shape[-1] or unknown:
        return _by_transformers(
            module,
            query,
            key,
            value,
            attention_mask,
            scaling,
            dropout,
            is_causal,
            softcap,
            sliding_window,
            weights,
            others,
        )
    causal = _is_causal(module, is_causal)
    return _by_ops(query, key, value, attention_mask, causal, sliding_window, scaling, softcap or 0.0), None


def _by_ops(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    causal: bool,
    sliding_window: int | None,
    scaling: float | None,
    cap: float,
) -> torch.Tensor:
    """``registry_attention`` [batch, q_len, heads, head_dim] by attention, or of one new token by attention_decode."""
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), _kept_alone(value.transpose(1, 2))
    q_len = q.shape[1]
    out: torch.Tensor
    if attention_mask is not None and not _is_lengths(attention_mask):
        mask = _broadcast(attention_mask, query, key)
        out, _ = call("attention", q, k, v, mask, scale=scaling, softcap=cap)
        return out
    window = -1 if sliding_window is None or not causal else sliding_window - 1
    if q_len == 1 and causal and gradient_needed((q, k, v)):
        # attention_decode has no gradient
        mask = _seen(attention_mask, query, key, sliding_window)
        out, _ = call("attention", q, k, v, mask, scale=scaling, softcap=cap)
    elif q_len == 1 and causal:
        filled = _lengths(q, k, attention_mask)
        out, _ = call("attention_decode", q, k, v, filled, scale=scaling, softcap=cap, window=window)
    else:
        if causal and k.shape[1] > q_len:
            # the first tokens in an empty StaticCache, whose other slots are behind them
            k, v = k[:, :q_len], v[:, :q_len]
        out, _ = call("attention", q, k, v, causal=causal, scale=scaling, softcap=cap, window=window)
    return out


def registry_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Any = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    **others: Any,
) -> torch.Tensor | None:
    """The mask that ``registry_attention`` gets: of one new token without padding the number of keys that it sees.

    That is int32 [batch, 1, 1, 1]. All else is transformers' mask for torch's attention: None if that is causal, or
    bool [batch, 1, q_len, kv_len].
    """
    plain = q_length == 1 and mask_function is causal_mask_function and not kv_offset
    if plain and (attention_mask is None or (not is_dynamo_compiling() and bool(attention_mask.all()))):
        if not isinstance(q_offset, torch.Tensor):
            filled = torch.full((batch_size, 1, 1, 1), q_offset + 1, dtype=torch.int32, device=others.get("device"))
        else:
            filled = (q_offset.reshape(-1, 1, 1, 1) + 1).to(torch.int32).expand(batch_size, 1, 1, 1).contiguous()
        return filled if isinstance(q_offset, torch.Tensor) or kv_length != q_offset + 1 else None
    all_keys = type(q_offset) is int and q_offset == kv_offset == 0 and q_length == kv_length
    if (
        all_keys
        and mask_function is causal_mask_function
        and attention_mask is None
        and others.get("allow_is_causal_skip", True)
    ):
        return None  # for torch before 2.14 transformers makes this mask while it is traced
    made: torch.Tensor | None = sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        **others,
    )
    return made


def _kept_alone(value: torch.Tensor) -> torch.Tensor:
    """A copy of values that autograd would keep with the queries and keys beside them, which nobody needs any more."""
    if is_dynamo_compiling() or not (torch.is_grad_enabled() and value.requires_grad) or value._base is None:
        return value
    return value.contiguous() if value._base.numel() > 2 * value.numel() else value


def _is_causal(module: torch.nn.Module, asked: bool | None) -> bool:
    causal: bool = getattr(module, "is_causal", True) if asked is None else asked
    return causal


def _is_lengths(mask: torch.Tensor) -> bool:
    return mask.dtype == torch.int32


def _broadcast(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A mask of the keys that there are, in a dtype that attention takes."""
    mask = mask[..., : key.shape[2]]
    return mask if mask.dtype in {torch.bool, query.dtype} else mask.to(query.dtype)


def _seen(
    lengths: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor, sliding_window: int | None
) -> torch.Tensor:
    """Which keys each new token sees by causal attention: bool [batch or 1, 1, q_len, kv_len].

    ``lengths``, int32 [batch, 1, 1, 1], are the keys that one new token sees. Without them one token sees all, and
    several tokens are the first ones of their sequences.
    """
    q_len, kv_len = query.shape[2], key.shape[2]
    place = torch.arange(kv_len, device=key.device).view(1, 1, 1, -1)
    if lengths is None:
        lengths = torch.arange(q_len, device=key.device).view(1, 1, -1, 1) + (kv_len if q_len == 1 else 1)
    seen = place < lengths
    return seen if sliding_window is None else seen & (place >= lengths - sliding_window)


def _lengths(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The number of keys of each sequence, int32 [batch]."""
    if mask is None:
        return full_lengths(q.shape[0], k.shape[1], q.device)
    known = None if APPENDS.step is None else APPENDS.step.lengths
    return mask.view(-1) if known is None else known


def _by_transformers(  # noqa: PLR0913, PLR0917
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    dropout: float,
    is_causal: bool | None,
    softcap: float | None,
    sliding_window: int | None,
    weights: bool,
    others: dict[str, Any],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    if others.get("indices") is not None:
        # DeepSeek-V3.2 hides the other keys by a mask, for the functions of transformers alone
        refuse(
            "attention over keys that an indexer chooses: no op takes them",
            hint='attn_implementation="sdpa" attends to these keys',
            kind=RegistryError,
        )
    eager = None
    if others.get("s_aux") is not None:
        eager = _own_eager(module, "sinks", 'attn_implementation="flex_attention" takes sinks')
    elif weights:
        eager = _own_eager(module, "output_attentions=True", 'attn_implementation="eager" returns weights')
    if mask is not None and _is_lengths(mask):
        mask = _seen(mask, query, key, sliding_window)
    elif mask is None and eager is not None and _is_causal(module, is_causal):
        mask = _seen(None, query, key, sliding_window)
    if mask is not None and eager is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, torch.finfo(query.dtype).min)
    name = "sdpa" if not softcap else "flex_attention"
    function = eager or ALL_ATTENTION_FUNCTIONS[name]
    given = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, "sliding_window": sliding_window, **others}
    if softcap:
        given["softcap"] = softcap
    found: tuple[torch.Tensor, torch.Tensor | None] = function(module, query, key, value, mask, **given)
    return found


def _own_eager(module: torch.nn.Module, what: str, hint: str) -> Callable[..., Any]:
    """The attention of a module's own file, which knows its sinks and returns its weights.

    transformers' function of torch ignores sinks, and returns no weights.
    """
    file = sys.modules[type(module).__module__]
    function: Callable[..., Any] | None = getattr(file, "eager_attention_forward", None)
    if function is None:
        refuse(f"attention with {what}: the model's file has no eager_attention_forward", hint=hint, kind=RegistryError)
    return function


AttentionInterface.register(NAME, registry_attention)
AttentionMaskInterface.register(NAME, registry_mask)
