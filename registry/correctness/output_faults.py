"""Faults of a call's outputs besides wrong numbers: number, shape, dtype, device, strides and shared memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import torch

from ..arguments.schema import tensors_in
from ..problem import TensorSpec, dtype_name

# of a tensor: which of torch's kinds it is. Private, but the only thing that tells a lazy tensor of any kind
_keys = torch._C._dispatch_keys
_is_lazy_copy: Callable[[torch.Tensor], bool] = getattr(torch._C, "_is_cow_tensor", lambda _: False)


def poison(tensors: tuple[torch.Tensor, ...]) -> None:
    """Fill tensors with NaN, or the largest integer, so that an element that a kernel does not write shows."""
    for tensor in tensors:
        if tensor.is_floating_point() or tensor.is_complex():
            tensor.fill_(math.nan)
        else:
            tensor.fill_(True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max)


def output_faults(
    outputs: tuple[torch.Tensor, ...], specs: Mapping[str, TensorSpec], values: tuple[Any, ...]
) -> list[str]:
    """Faults of outputs besides wrong numbers, in words; empty when there are none.

    Number, kind (``plain_fault``), shape, dtype, device and strides against ``specs``; memory shared with an argument
    or another output.
    """
    if len(outputs) != len(specs):
        return [f"{len(outputs)} outputs returned, expected {len(specs)}"]
    faults: list[str] = []
    for (name, spec), output in zip(specs.items(), outputs, strict=True):
        faults += spec_faults(name, output, spec)
    arguments = tensors_in(values)
    if any(map(plain_fault, outputs)):
        return faults
    for place, (name, output) in enumerate(zip(specs, outputs, strict=True)):
        if any(overlap(output, argument) for argument in arguments):
            faults.append(f"{name} shares memory with an argument")
        if any(overlap(output, earlier) for earlier in outputs[:place]):
            faults.append(f"{name} shares memory with another output")
    return faults


def plain_fault(output: object) -> str:
    """Why a value is no plain tensor; "" if it is dense, computed, and of torch's own class.

    A subclass, a lazy conjugate or an overridden attribute might do the work later, when the value is read; a lazy
    copy leaves it to whoever writes to the tensor, or asks for its address.
    """
    if type(output) is not torch.Tensor:
        return f"is a {type(output).__name__}, expected a plain torch.Tensor"
    if output.layout is not torch.strided:
        return f"has the layout {output.layout}, expected a dense tensor"
    if others := str(_keys(output) - _usual_keys(output.device))[len("DispatchKeySet(") : -1]:
        return f"is no plain tensor: torch treats it as {others}"
    if _is_lazy_copy(output):
        return "is a lazy copy, which shares memory with another tensor until somebody writes to it"
    if hidden := [part for part in vars(output) if hasattr(torch.Tensor, part)]:
        return f"has an attribute {hidden[0]} that hides torch.Tensor's"
    return ""


@lru_cache(maxsize=16)
def _usual_keys(device: torch.device) -> Any:
    with torch.inference_mode(False):
        return _keys(torch.empty(0, device=device))


def spec_faults(name: str, output: object, spec: TensorSpec) -> Iterator[str]:
    """Why output ``name`` is no plain tensor of the spec's shape, strides, dtype and device, each in words."""
    if fault := plain_fault(output):
        yield f"{name} {fault}"
        return
    assert isinstance(output, torch.Tensor)
    if tuple(output.shape) != spec.shape:
        yield f"{name} has shape {tuple(output.shape)}, expected {spec.shape}"
    elif _strides(output) != _strides(spec.empty(torch.device("meta"))):
        yield f"{name} has strides {output.stride()}, expected {spec.strides}"
    if output.dtype != spec.dtype:
        yield f"{name} is {dtype_name(output.dtype)}, expected {dtype_name(spec.dtype)}"
    if output.device != spec.device:
        yield f"{name} is on {output.device}, expected {spec.device}"


def _strides(tensor: torch.Tensor) -> list[int]:
    """The strides of dimensions with more than one element; none for an empty tensor."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1 and tensor.numel()]


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two tensors may share memory: their spans of addresses meet."""
    if one.device != other.device or one.numel() == 0 or other.numel() == 0:
        return False
    # addresses of meta tensors count from the start of their own storage
    if one.is_meta and one.untyped_storage()._cdata != other.untyped_storage()._cdata:
        return False
    (start, end), (other_start, other_end) = _span(one), _span(other)
    return start < other_end and other_start < end


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()
