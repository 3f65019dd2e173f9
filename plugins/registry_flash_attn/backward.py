"""FlashAttention's gradient from a given output and log-sum-exp.

Its public functions have the gradient through autograd alone, which would run the forward pass again, and of other
outputs than the given ones. What their gradient calls has a name of its own in each generation; it is used here alone,
and a version without it is unsupported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from registry import Device, Problem
from registry.errors import NotLaunchedError

from .forward import forward_reasons
from .generations import FA2, FA3, FA4, Generation, flash_attn, library, window_of

HeadGradients = tuple[torch.Tensor, ...]


def backward_reasons(generation: Generation, problem: Problem, device: Device) -> Iterator[str]:
    """Why a generation cannot run an ``attention_backward``."""
    yield from forward_reasons(generation, problem, device)
    if generation is FA4 and device.type == "cuda" and device.capability < (9, 0):
        yield f"its gradient needs compute capability 9.0, this is {device.architecture}"


def attention_backward(  # noqa: PLR0913, PLR0917  (a value of the schema each)
    generation: Generation,
    grad_out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    _mask: None,
    out: torch.Tensor,
    lse: torch.Tensor,
    causal: bool,
    scale: float | None,
    softcap: float,
    window: int,
    need_q: bool,
    need_k: bool,
    need_v: bool,
) -> HeadGradients:
    """The gradients by q, k and v of a generation."""
    entry = _of_fa4 if generation is FA4 else _of_earlier
    found = entry(generation, (grad_out, q, k, v, out, lse), (causal, scale, softcap, window))
    needs = (need_q, need_k, need_v)
    return tuple(each if needed else q.new_empty(0) for each, needed in zip(found, needs, strict=True))


def _private(generation: Generation, name: str) -> Callable[..., Any]:
    """A function of a generation that is not public. Raises NotLaunchedError if a version does not have it."""
    found: Callable[..., Any] | None = getattr(library(generation), name, None)
    if found is None:
        raise NotLaunchedError(
            f"{generation.library} has no {name}", hint="its gradient needs a version that has it; take another one"
        )
    return found


def _of_fa4(_: Generation, given: HeadGradients, how: tuple[Any, ...]) -> HeadGradients:
    (grad_out, q, k, v, out, lse), (causal, scale, softcap, window) = given, how
    before, after = window_of(FA4, window, causal)
    found: HeadGradients = _private(FA4, "_flash_attn_bwd")(
        q, k, v, out, grad_out, lse, softmax_scale=scale, causal=causal, softcap=softcap, window_size_left=before,
        window_size_right=after,
    )[:3]  # fmt: skip
    return found


def _of_earlier(generation: Generation, given: HeadGradients, how: tuple[Any, ...]) -> HeadGradients:
    (grad_out, q, k, v, out, lse), (causal, scale, softcap, window) = given, how
    before, after = window_of(generation, window, causal)
    made = {"dq": torch.empty_like(q), "dk": torch.empty_like(k), "dv": torch.empty_like(v)}
    own: dict[str, Any] = (
        {"is_causal": causal} if generation is FA3 else {"causal": causal, "dropout_p": 0.0, "alibi_slopes": None}
    )
    _private(generation, "_flash_attn_backward")(
        grad_out, q, k, v, out, lse, **made, **own, softmax_scale=q.shape[-1] ** -0.5 if scale is None else scale,
        window_size_left=before, window_size_right=after, softcap=softcap, deterministic=False,
    )  # fmt: skip
    return tuple(made.values())


IMPLEMENTATIONS = tuple(
    flash_attn(
        "attention_backward",
        generation,
        partial(attention_backward, generation),
        partial(backward_reasons, generation),
        deterministic=False,  # the gradient by q is added up by atomic operations
    )
    for generation in (FA4, FA3, FA2)
)
