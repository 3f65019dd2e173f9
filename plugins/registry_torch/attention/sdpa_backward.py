"""The gradients behind torch's scaled_dot_product_attention, each kernel an implementation of its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from registry.artifact import Built
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config

from . import aten, reasons
from .cudnn_gradients import cudnn_gradients
from .gradient_layouts import with_dense_lone_strides, with_heads_in_one_order, with_rows_of_lse
from .sdpa import cpu_reasons, cudnn_reasons, efficient_reasons, flash_reasons


class _FusedBackward(Implementation):
    """Base: a kernel of torch's own, of any size, which always computes all three gradients.

    The gradients of queries are summed up in any order, so that two runs may differ.
    """

    op = "attention_backward"
    returns_outputs = True
    any_size = True
    deterministic = False

    @abstractmethod
    def gradients(self, call: aten.GradientCall) -> aten.AttentionGradients:
        """``grad_q``, ``grad_k`` and ``grad_v`` of a call."""

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Any size; a gradient that is not needed is left out."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
            call = with_rows_of_lse(aten.GradientCall(*arguments))
            made = zip(self.gradients(call), (call.need_q, call.need_k, call.need_v), strict=True)
            return tuple([x.contiguous() if needed else x.new_empty(0) for x, needed in made])

        return run


class FlashAttentionBackward(_FusedBackward):
    """FlashAttention 2's gradients; halves."""

    name = "torch.sdpa_flash"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Reasons of FlashAttention's forward pass, for the gradients."""
        yield from flash_reasons(problem, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Behind cuDNN on GPUs from compute capability 9.0 on."""
        return 1.2

    def gradients(self, call: aten.GradientCall) -> aten.AttentionGradients:
        """The gradients by torch's private operator."""
        return aten.flash_backward(call)


class CudnnAttentionBackward(_FusedBackward):
    """cuDNN's gradients; halves."""

    name = "torch.sdpa_cudnn"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Reasons of cuDNN's forward pass, and a single query and key."""
        yield from cudnn_reasons(problem, device)
        if problem.q_len == problem.kv_len == 1:
            yield "cuDNN has no gradient of one query and one key"

    def preference(self, problem: Problem, device: Device) -> float:
        """Made for compute capability 9.0; before it FlashAttention 2 is not behind."""
        return 1.5 if device.capability >= (9, 0) else 1.0

    def gradients(self, call: aten.GradientCall) -> aten.AttentionGradients:
        """The gradients by torch's private operator."""
        return cudnn_gradients(call)


class EfficientAttentionBackward(_FusedBackward):
    """The gradients of xformers' memory-efficient attention; halves and float32, of as many heads of keys."""

    name = "torch.sdpa_efficient"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Reasons of the forward pass, and heads that share keys, whose gradients would have to be summed."""
        yield from efficient_reasons(problem, device)
        if problem.kv_heads == 1 < problem.heads:
            yield f"{problem.heads} heads share one of keys and values"

    def preference(self, problem: Problem, device: Device) -> float:
        """Behind FlashAttention, which lacks masks and float32."""
        return 0.5

    def gradients(self, call: aten.GradientCall) -> aten.AttentionGradients:
        """The gradients by torch's private operator."""
        call = with_dense_lone_strides(with_heads_in_one_order(call))
        return aten.efficient_backward(call, reasons.bias_of(call.mask, call.q, call.k.shape[1]))


class CpuFlashAttentionBackward(_FusedBackward):
    """The gradients of torch's FlashAttention for CPUs."""

    name = "torch.flash_cpu"
    device_types: ClassVar[frozenset[str]] = frozenset({"cpu"})
    deterministic = True

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Reasons of FlashAttention's forward pass, for the gradients."""
        yield from cpu_reasons(problem)

    def preference(self, problem: Problem, device: Device) -> float:
        """Ahead of torch's formula, which keeps all logits in memory."""
        return 0.5

    def gradients(self, call: aten.GradientCall) -> aten.AttentionGradients:
        """The gradients by torch's private operator."""
        return aten.cpu_backward(call, reasons.bias_of(call.mask, call.q, call.k.shape[1]))
