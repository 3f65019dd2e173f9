"""States of torch, or of a call's tensors, in which a kernel must not be launched directly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from ...arguments.schema import Schema
from .tensor_classes import KINDS, in_line
from .torch_private import (
    autocasting,
    dispatch_modes,
    forward_level,
    jit_tracing,
    stands_for_others,
    tracing_modes,
    transforming,
    zero_without_memory,
)


def unusual(tensors: Iterable[torch.Tensor]) -> str:
    """Why only torch's operations may process these tensors now; "" if a kernel may be launched."""
    tensors = list(tensors)
    if dispatch_modes():
        return (
            "a torch dispatch mode is active (FakeTensorMode, make_fx or alike), which must see torch's own operations"
        )
    if transforming():
        return "a functorch transform (vmap, func.grad) is running"
    if jit_tracing():
        return "torch.jit is tracing"
    if not in_line(tensors):
        return "tensors are of subclasses that do not derive from one another"
    return next((reason for reason in map(_unusual_tensor, tensors) if reason), "") or _dual(tensors)


def strange_class(tensors: Iterable[torch.Tensor]) -> str:
    """The name of a tensor subclass, if that is the only reason why no kernel may be launched; else ""."""
    if dispatch_modes() or transforming() or jit_tracing():
        return ""
    strange = [one for one in tensors if KINDS[type(one)] == "own" and not stands_for_others(one)]
    return type(strange[0]).__name__ if strange else ""


def _unusual_tensor(tensor: torch.Tensor) -> str:
    if KINDS[type(tensor)] == "own":
        return f"a {type(tensor).__name__} is a tensor subclass with a behaviour of its own"
    if tensor.layout != torch.strided:
        return f"a tensor has the layout {tensor.layout}"
    if tensor.is_neg() or tensor.is_conj():
        return "a tensor is a lazy negation or conjugate"
    if zero_without_memory(tensor):
        return "a tensor is autograd's zero without memory"
    return _unusual_memory(tensor)


def _unusual_memory(tensor: torch.Tensor) -> str:
    try:
        address = tensor.data_ptr()
    except RuntimeError:
        return "a tensor stands for a batch of others (of autograd's is_grads_batched) and has no memory of its own"
    if address == 0 and tensor.device.type != "meta" and tensor.numel() > 0:
        return "a tensor's memory was freed"
    return ""


def _dual(tensors: Iterable[torch.Tensor]) -> str:
    if not in_dual_level():
        return ""
    if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        return "an input carries a forward-mode tangent"
    return ""


def in_dual_level() -> bool:
    """True in a block of forward-mode AD, whether or not a tensor has a tangent."""
    return bool(forward_level._current_level >= 0)


def differentiating_otherwise() -> bool:
    """True in a functorch transform or a block of forward-mode AD, for which a backward of our own is not enough."""
    return transforming() or in_dual_level()


def traced_by_torch(tensors: Iterable[torch.Tensor]) -> bool:
    """True if torch records operators instead of only running them: fake tensors, make_fx, export, any dispatch mode.

    False where only torch's own operations are right: transforms, forward AD, an unknown tensor subclass.
    """
    tensors = list(tensors)
    symbols = [tensor for tensor in tensors if stands_for_others(tensor)]
    if not dispatch_modes() and not symbols:
        return False
    if any(KINDS[type(tensor)] == "own" and not stands_for_others(tensor) for tensor in tensors):
        return False
    return not transforming() and not jit_tracing() and not _dual(tensors)


def traced_in_a_graph(tensors: Iterable[torch.Tensor]) -> bool:
    """True if ``traced_by_torch`` for a graph, or for fake tensors; False under modes that only listen to operators."""
    tensors = list(tensors)
    return traced_by_torch(tensors) and (tracing_modes() or any(map(stands_for_others, tensors)))


def gradient_needed(tensors: Iterable[torch.Tensor]) -> bool:
    """True if autograd would record a call with these tensors."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def keeping_dtype(run: Callable[..., Any], tensors: Iterable[torch.Tensor]) -> Callable[..., Any]:
    """``run`` with autocast disabled for the devices of these tensors.

    An op keeps its dtype under autocast, also if an implementation uses torch's operations.
    """
    # a plain loop, which torch.compile can trace
    for kind in ["cpu", "cuda", *[tensor.device.type for tensor in tensors if tensor.device.type not in _USUAL]]:
        if autocasting(kind):
            run = _without_autocast(run, kind)
    return run


_USUAL = ("cpu", "cuda")


def _without_autocast(run: Callable[..., Any], device_type: str) -> Callable[..., Any]:
    def outside(*values: Any) -> Any:
        with torch.autocast(device_type, enabled=False):
            return run(*values)

    return outside


def counting_writes(run: Callable[..., Any], schema: Schema) -> Callable[..., Any]:
    """``run`` that also increments the version counters of written arguments, by which autograd detects changes."""
    places = [place for place, parameter in enumerate(schema.parameters) if parameter.mutated]

    def counted(*values: Any) -> Any:
        outputs = run(*values)
        for place in places:
            if not values[place].is_inference():
                increment_version(values[place])
        return outputs

    return counted


def capturing(tensors: Iterable[torch.Tensor]) -> bool:
    """True if the current stream of these tensors' GPU is being captured; it need not be the current GPU."""
    return any(map(_capturing_on, {tensor.device for tensor in tensors if tensor.is_cuda}))


def _capturing_on(device: torch.device) -> bool:
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def nothing_to_launch(tensors: Sequence[torch.Tensor]) -> str:
    """Why no kernel can be launched: no tensors, no elements, or another device type; "" if one can."""
    if not tensors:
        return "there is no tensor among the arguments"
    if any(tensor.numel() == 0 for tensor in tensors):
        return "a tensor has no elements"
    kind = tensors[0].device.type
    return "" if kind in {"cpu", "cuda"} else f"no implementation runs on {kind}"
