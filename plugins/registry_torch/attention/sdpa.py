"""The kernels behind torch's scaled_dot_product_attention, each an implementation of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from registry.artifact import Built
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config

from . import aten, reasons

_MOST_FLASH, _MOST_CUDNN = 256, 128
"""The largest head_dim of FlashAttention 2, and of cuDNN's forward and backward on every GPU."""


class _Fused(Implementation):
    """Base: a kernel of torch's own, of any size."""

    op = "attention"
    returns_outputs = True
    any_size = True


class FlashAttention(_Fused):
    """FlashAttention 2 (Dao, 2023), with causal rows, windows and grouped heads; halves."""

    name = "torch.sdpa_flash"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Other dtypes, long heads, masks and caps, old GPUs."""
        yield from flash_reasons(problem, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """On an H200 it is behind cuDNN and Triton: 319 TFLOP/s where they reach 628 and 494."""
        return 0.7 if device.capability >= (9, 0) else 1.2

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Bind FlashAttention 2 for any size; its causal rows are aligned to the last key, as the op wants."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
            q, k, v, _mask, causal, scale, _cap, window = arguments
            out, lse = aten.flash(q, k, v, causal, scale, window)
            return out.contiguous(), lse.contiguous()

        return run


def flash_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why FlashAttention 2, or its gradient, cannot run a problem."""
    if lacking := aten.missing("_flash_attention_forward", "_flash_attention_backward"):
        yield f"this torch lacks {', '.join(lacking)}"
    yield from reasons.capability_reasons(device, (8, 0))
    yield from reasons.dtype_reasons(problem, reasons.HALVES)
    yield from reasons.form_reasons(problem, window=True)
    yield from reasons.blind_reasons(problem)
    yield from reasons.layout_reasons(problem)
    if problem.head_dim > _MOST_FLASH:
        yield f"head_dim={problem.head_dim} (limit {_MOST_FLASH})"


class CudnnAttention(_Fused):
    """cuDNN's fused attention, with causal rows and grouped heads; halves."""

    name = "torch.sdpa_cudnn"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Other dtypes, long heads, masks, caps and windows, old GPUs, causal rows of another number than keys."""
        yield from cudnn_reasons(problem, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """On an H200 ahead of all but cuda.wgmma: 628 TFLOP/s; before Hopper FlashAttention 2 is not behind."""
        return 1.5 if device.capability >= (9, 0) else 1.0

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Bind cuDNN's attention for any size; cuDNN plans a new size at its first call."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
            q, k, v, _mask, causal, scale, *_ = arguments
            out, lse = aten.cudnn(q, k, v, causal, scale)
            return out.contiguous(), lse.contiguous()

        return run


def cudnn_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why cuDNN's attention, or its gradient, cannot run a problem."""
    names = ("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward")
    if lacking := aten.missing(*names):
        yield f"this torch lacks {', '.join(lacking)}"
    elif not torch.backends.cudnn.is_available():
        yield "this torch has no cuDNN"
    yield from reasons.capability_reasons(device, (8, 0))
    yield from reasons.dtype_reasons(problem, reasons.HALVES)
    yield from reasons.form_reasons(problem)
    yield from reasons.from_first_reasons(problem)
    yield from reasons.layout_reasons(problem)
    if problem.head_dim > _MOST_CUDNN:
        yield f"head_dim={problem.head_dim} (limit {_MOST_CUDNN})"


class EfficientAttention(_Fused):
    """xformers' memory-efficient attention, with masks and causal windows; halves and float32, also on older GPUs."""

    name = "torch.sdpa_efficient"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Grouped heads, caps, windows of both sides."""
        yield from efficient_reasons(problem, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Behind FlashAttention, which lacks masks and float32."""
        return 0.5

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Bind the memory-efficient attention for any size; all query heads may read one head of keys and values."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
            q, k, v, mask, causal, scale, _cap, window = arguments
            bias = reasons.bias_of(mask, q, k.shape[1])
            k, v = (x.expand(-1, -1, q.shape[2], -1) for x in (k, v))
            out, lse = aten.efficient(q, k, v, bias, causal, scale, window)
            return reasons.without_blind_rows(out, lse, mask)

        return run


def efficient_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why the memory-efficient attention, or its gradient, cannot run a problem."""
    if lacking := aten.missing("_efficient_attention_forward", "_efficient_attention_backward"):
        yield f"this torch lacks {', '.join(lacking)}"
    yield from reasons.capability_reasons(device, (8, 0) if problem.dtype == "bfloat16" else (5, 0))
    yield from reasons.dtype_reasons(problem, (*reasons.HALVES, "float32"))
    yield from reasons.form_reasons(problem, mask=True, window=problem.causal, grouped=False)
    if problem.mask == "additive":
        yield "the log-sum-exp of a row whose keys all have the lowest number of its dtype is wrong"
    yield from reasons.blind_reasons(problem)
    yield from reasons.layout_reasons(problem)
    vector = 16 // problem.torch_dtype.itemsize
    if problem.mask != "none" and problem.kv_len % vector:
        yield f"the rows of a mask of kv_len={problem.kv_len} do not start at multiples of 16 bytes"
    elif problem.mask == "additive" and not problem.traits.contiguous("mask"):
        yield "the mask is not contiguous"


def cpu_reasons(problem: Problem) -> Iterator[str]:
    """Why torch's FlashAttention for CPUs, or its gradient, cannot run a problem."""
    names = ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward")
    if lacking := aten.missing(*names):
        yield f"this torch lacks {', '.join(lacking)}"
    yield from reasons.form_reasons(problem, mask=True)
    yield from reasons.from_first_reasons(problem)
    yield from reasons.neighbour_reasons(problem)
    if problem.causal and problem.mask != "none":
        yield "it takes a mask or causal rows, not both"
    if not problem.kv_len or not problem.q_len or not problem.batch:
        yield "there is no query or no key"
