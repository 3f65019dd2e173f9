"""FlashAttention 2 of packed sequences, the kernel behind torch's ``varlen_attn`` (torch.nn.attention.varlen)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from registry.artifact import Built
from registry.backends.head_strides import outer_strides
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config

from . import aten, reasons

_MOST = 256
_VECTOR = 8
"""Elements of a half that a thread loads at once: 16 bytes."""


def clamped(offsets: torch.Tensor, total: int) -> torch.Tensor:
    """Offsets within the tensors. Of these a length may be negative, which the kernel takes for no token."""
    return offsets.clamp(0, total)


def right_sums(out: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """The log-sum-exp [heads, tokens] with -inf for rows that see no key, and NaN for those whose output is NaN.

    FlashAttention 2 has inf for both.
    """
    first = out[..., 0].transpose(0, 1)
    return torch.where(lse == math.inf, torch.where(first.isnan(), math.nan, -math.inf), lse)


def flash_packed(
    values: tuple[Any, ...], offsets: tuple[torch.Tensor, torch.Tensor], longest: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp of a call. ``longest``: as many queries and keys as a sequence may have."""
    q, k, v, _, _, causal, scale, _softcap, window = values
    sides: dict[str, int | None] = {"window_size_left": None, "window_size_right": None}
    if window >= 0:
        sides = {"window_size_left": window, "window_size_right": 0 if causal else window}
    forward = torch.ops.aten._flash_attention_forward
    # told of one query at most, it takes each sequence to have one, and none may be empty
    queries = max(longest[0], 2)
    scale = aten.nonzero(scale)
    out, lse, *_ = forward(q, k, v, *offsets, queries, longest[1], 0.0, causal, False, scale=scale, **sides)
    return out.contiguous(), right_sums(out, lse).contiguous()


def _reasons(problem: Problem, device: Device) -> Iterator[str]:
    if lacking := aten.missing("_flash_attention_forward"):
        yield f"this torch lacks {', '.join(lacking)}"
    elif not torch.backends.cuda.is_flash_attention_available():
        yield "this build of torch has no FlashAttention"
    yield from reasons.capability_reasons(device, (8, 0))
    yield from reasons.dtype_reasons(problem, reasons.HALVES)
    if problem.softcap:
        yield "it has no soft cap"
    if problem.head_dim > _MOST:
        yield f"head_dim={problem.head_dim} (limit {_MOST})"
    if problem.head_dim % _VECTOR:
        yield f"head_dim={problem.head_dim} is no multiple of {_VECTOR}"
    if not problem.total_q or not problem.total_k:
        yield "there is no query or no key"
    for name in ("q", "k", "v"):
        strides = outer_strides(problem, name, (problem.heads if name == "q" else problem.kv_heads, problem.head_dim))
        if strides is None:
            yield f"the elements of a head of {name} are not neighbours"
        elif not problem.traits.aligned(name) or any(stride % _VECTOR for stride in strides):
            yield f"the heads of {name} do not start at multiples of 16 bytes"
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        if not problem.traits.contiguous(name):
            yield f"{name} is not contiguous"


class FlashVarlen(Implementation):
    """FlashAttention 2 of all sequences at once; halves, with causal rows, windows and grouped heads.

    It is told that any sequence may have all tokens, since the host does not know the longest. So the call can be
    captured, and programs beyond the end of a shorter sequence end at once.
    """

    op = "attention_varlen"
    name = "torch.flash_varlen"
    returns_outputs = True
    any_size = True

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Other dtypes, caps, long heads and heads of other widths, layouts, old GPUs."""
        yield from _reasons(problem, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Behind Triton's kernel, which has as many programs as tiles."""
        return 0.6

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Bind FlashAttention 2 for any size."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
            totals = arguments[0].shape[0], arguments[1].shape[0]
            offsets = clamped(arguments[3], totals[0]), clamped(arguments[4], totals[1])
            return flash_packed(arguments, offsets, totals)

        return run


class SizedFlashVarlen(Implementation):
    """FlashAttention 2 of all sequences at once, told the longest: the host reads the offsets and waits for them.

    It cannot be captured, and has no program for which there is no tile.
    """

    op = "attention_varlen"
    name = "torch.flash_varlen_sized"
    returns_outputs = True
    any_size = True
    capturable = False

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Other dtypes, caps, long heads and heads of other widths, layouts, old GPUs."""
        yield from _reasons(problem, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Behind what does not wait for the device."""
        return 0.3

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Bind FlashAttention 2 for any size."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
            totals = arguments[0].shape[0], arguments[1].shape[0]
            offsets = clamped(arguments[3], totals[0]), clamped(arguments[4], totals[1])
            # one wait for both
            longest = torch.stack([each.diff().max() for each in offsets]).clamp(min=1).tolist()
            return flash_packed(arguments, offsets, (longest[0], longest[1]))

        return run
