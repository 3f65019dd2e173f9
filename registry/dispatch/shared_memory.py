"""Checks that each element that a call writes to shares no memory with another element of its tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..arguments.expansion import expanded_dims
from ..arguments.schema import Schema, tensors_in
from ..correctness.output_faults import overlap
from ..errors import InvalidArgumentError

_MOST_TRIED = 64
"""The most multiples of one stride that are tried; beyond that the tensors count as sharing memory."""

_Step = tuple[int, tuple[int, int]]
"""A stride in bytes, and the least and the greatest multiple of it."""


def check_apart(op: str, schema: Schema, values: Sequence[Any]) -> None:
    """Raise InvalidArgumentError if an element that the op writes to shares memory with another one of the call."""
    for name in _repeating(schema, values):
        raise InvalidArgumentError(
            f"{op}: {name} is expanded, so that several of its elements are one in memory, and it is written to",
            hint=f"give each element memory of its own: {name}.clone(memory_format=torch.contiguous_format)",
        )
    for name, other in _shared(schema, values):
        raise InvalidArgumentError(
            f"{op}: {name} and {other} share memory, and {name} is written to",
            hint=f"give each memory of its own, e.g. {other}.clone()",
        )


def is_apart(schema: Schema, values: Sequence[Any]) -> bool:
    """True if ``check_apart`` accepts the call."""
    return not any(_repeating(schema, values)) and next(_shared(schema, values), None) is None


def _repeating(schema: Schema, values: Sequence[Any]) -> Iterator[str]:
    """Names of the tensors that the op writes to and that are expanded."""
    for parameter, value in zip(schema.parameters, values, strict=True):
        if parameter.mutated and expanded_dims(value) and value.numel():
            yield parameter.name


def _shared(schema: Schema, values: Sequence[Any]) -> Iterator[tuple[str, str]]:
    given = list(zip(schema.parameters, values, strict=True))
    for place, (parameter, value) in enumerate(given):
        if not parameter.mutated:
            continue
        for number, (other, held) in enumerate(given):
            # a pair of written tensors is checked once
            if number == place or (other.mutated and number < place):
                continue
            if any(share_memory(value, tensor) for tensor in tensors_in((held,))):
                yield parameter.name, other.name


def span_bytes(tensor: torch.Tensor) -> int:
    """Bytes from the start of the first element to the end of the last one."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if an element of one tensor overlaps an element of the other; separate columns of one tensor do not."""
    if not overlap(one, other):
        return False
    bounds: dict[int, tuple[int, int]] = {}
    for tensor, sign in ((one, 1), (other, -1)):
        size = tensor.element_size()
        strides = [size * stride for stride in tensor.stride()]
        for count, stride in ((size, 1), *zip(tensor.shape, strides, strict=True)):
            least, most = bounds.get(stride, (0, 0))
            reach = sign * (count - 1)
            bounds[stride] = least + min(reach, 0), most + max(reach, 0)
    bounds.pop(0, None)
    return _reaches(other.data_ptr() - one.data_ptr(), sorted(bounds.items(), reverse=True))


def _reaches(distance: int, steps: Sequence[_Step]) -> bool:
    """True if multiples of these strides, the longest first, add up to ``distance``."""
    if not steps:
        return distance == 0
    (stride, (low, high)), *rest = steps
    least, most = (sum(one * bounds[end] for one, bounds in rest) for end in (0, 1))
    first = max(low, -((most - distance) // stride))
    last = min(high, (distance - least) // stride)
    if last - first > _MOST_TRIED:
        return True
    return any(_reaches(distance - count * stride, rest) for count in range(first, last + 1))
