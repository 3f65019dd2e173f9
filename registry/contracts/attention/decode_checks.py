"""What attention_decode refuses: of arguments, of dimensions, of the contents of tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ...errors import InvalidArgumentError
from ...problem import Arguments, Problem, TensorSpec, Value, dtype_name
from ...tracing import refuse
from ..checks import (
    FLOATS,
    float_dtype,
    float_tensor,
    positive,
    same_dtype,
    shape_text,
)
from ..quantize_per_token import LARGEST
from ..segments import check_number_of
from .cache_checks import cache_room, check_page, check_places, is_size_or_false
from .decode_inputs import FLOAT8, INT8
from .logits import ENDLESS

KV_DTYPES = ("auto", FLOAT8, INT8)
"""Dtypes of a cache: that of the queries, or one with a scale."""

_CACHES = (("k_cache", "k_scale"), ("v_cache", "v_scale"))


def decode_problem(arguments: Arguments) -> Mapping[str, Value]:
    """The dimensions of a call. Raises InvalidArgumentError for tensors that do not go together."""
    op, q, cache = arguments.op, float_tensor(arguments, "q"), arguments.tensor("k_cache")
    if len(q.shape) != 4 or len(cache.shape) != 4 or not q.shape[1] or not cache.shape[1] or not cache.shape[2]:
        raise InvalidArgumentError(
            f"{op}: q is {shape_text(q.shape)} and k_cache is {shape_text(cache.shape)}",
            hint="expected q [batch, q_len, heads, head_dim] and a cache [batch, kv_len, kv_heads, head_dim], or"
            " [blocks, page, kv_heads, head_dim] with a block_table",
        )
    batch, q_len, heads, head_dim = q.shape
    kv_heads = cache.shape[2]
    if cache.shape[3] != head_dim or heads % kv_heads:
        raise InvalidArgumentError(
            f"{op}: q has {heads} heads of {head_dim} elements but k_cache has {kv_heads} of {cache.shape[3]}",
            hint="heads of one size; the number of q's is a multiple of the cache's",
        )
    for names in _CACHES:
        _check_cache(arguments, q, cache, names)
    _check_scale(arguments)
    page, kv_len = cache_room(arguments, batch, "k_cache", "kv_heads, head_dim")
    return {
        "batch": batch,
        "heads": heads,
        "kv_heads": kv_heads,
        "q_len": q_len,
        "kv_len": kv_len,
        "head_dim": head_dim,
        "page": page,
        "span": _span_of(arguments),
        "kv_dtype": name if (name := dtype_name(cache.dtype)) in LARGEST else "auto",
        "softcap": _softcap(arguments),
        "dtype": dtype_name(q.dtype),
    }


def _check_cache(arguments: Arguments, q: TensorSpec, like: TensorSpec, names: tuple[str, str]) -> None:
    op, (name, scale_name) = arguments.op, names
    cache, scale = arguments.tensor(name), arguments.optional_tensor(scale_name)
    if cache.shape != like.shape or cache.dtype != like.dtype:
        raise InvalidArgumentError(
            f"{op}: {name} is {dtype_name(cache.dtype)} {shape_text(cache.shape)} but k_cache is"
            f" {dtype_name(like.dtype)} {shape_text(like.shape)}",
            hint="both caches have one shape and one dtype",
        )
    kind = dtype_name(cache.dtype)
    if kind not in LARGEST:
        same_dtype(op, ("q", q), (name, cache), hint=f"expected the dtype of q, or a scale and {FLOAT8} or {INT8}")
        if scale is not None:
            raise InvalidArgumentError(
                f"{op}: {scale_name} is given but {name} is {kind}",
                hint=f"scales are for caches of {FLOAT8} and {INT8}: leave it out",
            )
        return
    if q.dtype not in FLOATS:
        raise InvalidArgumentError(
            f"{op}: q is {dtype_name(q.dtype)} but {name} is {kind}",
            hint="expected q of bfloat16, float16 or float32",
        )
    if scale is None or scale.numel != 1 or scale.dtype != torch.float32:
        given = "None" if scale is None else f"{dtype_name(scale.dtype)} {shape_text(scale.shape)}"
        raise InvalidArgumentError(
            f"{op}: {scale_name} is {given} but {name} is {kind}",
            hint="expected float32 of one element for all heads, the scale that kv_cache_append got",
        )


def _span_of(arguments: Arguments) -> int | bool:
    """Keys that a token sees, its own among them; False if it sees all, as with a window of ``ENDLESS`` keys."""
    window = arguments.integer("window")
    if window < -1:
        raise InvalidArgumentError(
            f"{arguments.op}: window={window}", hint="expected the number of earlier keys that a token sees, or -1: all"
        )
    return window + 1 if 0 <= window < ENDLESS else False


def _check_scale(arguments: Arguments) -> None:
    scale = arguments["scale"]
    if isinstance(scale, float) and not math.isfinite(scale):
        refuse(f"{arguments.op}: scale={scale}", hint="expected a finite number, or None for 1 / sqrt(head_dim)")


def _softcap(arguments: Arguments) -> bool:
    softcap = arguments.number("softcap")
    # written so that NaN fails too
    if not 0.0 <= softcap < math.inf:
        raise InvalidArgumentError(f"{arguments.op}: softcap={softcap}", hint="expected a positive number, or 0: none")
    return softcap > 0.0


def check_decode(problem: Problem) -> None:
    """Raise InvalidArgumentError for dimensions that no call has."""
    positive(problem, "batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim")
    check_number_of(problem, "batch")
    float_dtype(problem)
    op, span = problem.op, problem.span
    if problem.heads % problem.kv_heads:
        raise InvalidArgumentError(
            f"{op}: heads={problem.heads} is no multiple of kv_heads={problem.kv_heads}",
            hint="each head of keys serves as many heads of queries",
        )
    check_page(problem)
    if not is_size_or_false(span):
        raise InvalidArgumentError(f"{op}: span={span!r}", hint="expected the keys that a token sees, or False: all")
    if problem.kv_dtype != "auto" and problem.torch_dtype not in FLOATS:
        raise InvalidArgumentError(
            f"{op}: {problem.dtype} with a cache of {problem.kv_dtype}", hint="expected bfloat16, float16 or float32"
        )


def check_decode_data(values: Mapping[str, Any]) -> None:
    """Raise OutOfRangeError for a length beyond the room of its sequence, and for a page that the cache lacks."""
    check_places("attention_decode", values["k_cache"], values["kv_lens"], values["block_table"])
