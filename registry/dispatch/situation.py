"""What is unusual about a call: the states in which a kernel may not simply be launched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd import forward_ad

from .torch_private import PLAIN, autocasting, dispatch_modes, jit_tracing, transforming


def unusual(tensors: Iterable[torch.Tensor]) -> str:
    """Why only plain torch operations are right for these tensors now; empty when a kernel may be launched."""
    tensors = list(tensors)
    if dispatch_modes():
        return (
            "a torch dispatch mode is active (FakeTensorMode, make_fx or alike), which must see torch's own operations"
        )
    if transforming():
        return "a functorch transform (vmap, func.grad) is running"
    if jit_tracing():
        return "torch.jit is tracing"
    return next((reason for reason in map(_unusual_tensor, tensors) if reason), "") or _dual(tensors)


def _unusual_tensor(tensor: torch.Tensor) -> str:
    if type(tensor) not in PLAIN:
        return f"a {type(tensor).__name__} is a tensor subclass"
    if tensor.layout != torch.strided:
        return f"a tensor has the layout {tensor.layout}"
    if tensor.is_neg() or tensor.is_conj():
        return "a tensor is a lazy negation or conjugate"
    if tensor._is_zerotensor():
        return "a tensor is autograd's zero without memory"
    if tensor.data_ptr() == 0 and tensor.device.type != "meta" and tensor.numel() > 0:
        return "a tensor's memory was freed"
    return ""


def _dual(tensors: Iterable[torch.Tensor]) -> str:
    if forward_ad._current_level < 0:
        return ""
    if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        return "an input carries a forward-mode tangent"
    return ""


def gradient_needed(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether autograd would record this call."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def autocast_active(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether autocast is on for these tensors' device."""
    return any(autocasting(kind) for kind in {tensor.device.type for tensor in tensors})


def without_autocast(run: Callable[..., Any], device_type: str) -> Callable[..., Any]:
    """``run`` with autocast off: an op keeps its dtype, whatever torch operations an implementation is made of."""

    def outside(*values: Any) -> Any:
        with torch.autocast(device_type, enabled=False):
            return run(*values)

    return outside


def capturing(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether the current stream of these tensors' GPU is being captured into a graph."""
    return any(tensor.is_cuda for tensor in tensors) and torch.cuda.is_current_stream_capturing()
