"""Elements all over each output, which are changed before a sample and read again when its clock has stopped.

An output that is late, also in a part only, then still holds the changed elements. Memory that functional code will
return is not known before the call, and may hold the result of an earlier one: there the inputs change instead.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from ...correctness.bits import as_bits
from ...correctness.output_faults import plain_fault
from ...implementation import Tensors
from ...problem import TensorSpec
from .secret_elements import Memory, flipping_mask
from .stack import Stack

_PARTS = 30
"""Equal parts of a tensor, of each of which one element is drawn; its first and its last element are added."""

_STEPS = 8
"""Changes whose places are drawn together."""
_NUMPY = frozenset({torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8})
"""Types whose numbers NumPy has too."""


class SpreadElements(ABC):
    """Elements of one output of each rotating copy, at places that each ``change`` draws."""

    def __init__(self, spec: TensorSpec) -> None:
        self._spec = spec
        self._generator = torch.Generator().manual_seed(secrets.randbits(60))
        self._rows: list[torch.Tensor] = []

    @abstractmethod
    def change(self, copies: Sequence[int]) -> None:
        """Draw places in the outputs of these copies; change the elements there, where the host owns them."""

    @abstractmethod
    def read(self) -> Sequence[Any]:
        """The values that the elements hold now."""

    def _read_again(self) -> Sequence[Any]:
        return self.read()

    def hold(self, seen: Sequence[Any]) -> list[torch.Tensor]:
        """Flags whether the elements still hold the values ``seen`` by ``read``."""
        return [torch.as_tensor((was == now).all()) for was, now in zip(seen, self._read_again(), strict=True)]

    def _places(self) -> torch.Tensor:
        """Places of the elements, counted in integers from the tensor's first: a complex number is two."""
        self._rows = self._rows or list(self._drawn().unbind())
        return self._rows.pop()

    def _drawn(self) -> torch.Tensor:
        spec = self._spec
        parts = torch.rand((_STEPS, _PARTS), generator=self._generator, dtype=torch.float64)
        parts.add_(torch.arange(_PARTS)).mul_(spec.numel / _PARTS)
        ends = torch.tensor([0, spec.numel - 1]).expand(_STEPS, 2)
        left = torch.cat([parts.long(), ends], 1).clamp_(max=spec.numel - 1)
        found = torch.zeros_like(left)
        for size, stride in zip(reversed(spec.shape), reversed(spec.strides), strict=True):
            found += left % size * stride
            left = left // size
        return found.mul_(2 if spec.dtype.is_complex else 1)


class OfStack(SpreadElements):
    """Elements of outputs that the host has allocated."""

    def __init__(self, spec: TensorSpec, stack: Stack) -> None:
        super().__init__(spec)
        self._stack = stack
        self._memory = Memory(stack.bits)
        self._mask = flipping_mask(spec.dtype)
        self._changed: Any = None

    def change(self, copies: Sequence[int]) -> None:
        starts = self._stack.starts(list(dict.fromkeys(copies)))
        self._changed = self._memory.indices(starts[:, None] + self._places())
        self._memory.flip(self._changed, self._mask)

    def read(self) -> Sequence[Any]:
        return [self._memory.read(self._changed)]


class OfReturned(SpreadElements):
    """Elements of outputs that functional code returns: ``outputs`` holds the latest of each copy.

    Memory that was read is held, so that no other tensor gets it before it is read again.
    """

    def __init__(self, spec: TensorSpec, outputs: Sequence[Tensors], position: int) -> None:
        super().__init__(spec)
        self._outputs = outputs
        self._position = position
        self._span = 1 + sum((size - 1) * stride for size, stride in zip(spec.shape, spec.strides, strict=True))
        self._copies: Sequence[int] = ()
        self._now = torch.empty(0)
        self._held: list[Memory] = []

    def change(self, copies: Sequence[int]) -> None:
        self._copies = copies
        self._now = self._places()

    def read(self) -> Sequence[Any]:
        self._held = [memory for copy in self._copies if (memory := self._memory_of(copy)) is not None]
        return self._read_again()

    def _read_again(self) -> Sequence[Any]:
        return [memory.read(memory.indices(self._now)) for memory in self._held]

    def _memory_of(self, copy: int) -> Memory | None:
        """The memory of a copy's output; None where the output is not of the expected form, which judging refuses."""
        outputs, spec = self._outputs[copy], self._spec
        output = outputs[self._position] if self._position < len(outputs) else None
        if output is None or plain_fault(output) or (output.shape, output.dtype) != (spec.shape, spec.dtype):
            return None
        if output.stride() != spec.strides:
            return None
        if output.is_contiguous() and not output.requires_grad and spec.dtype in _NUMPY and spec.device.type == "cpu":
            # torch's operators let another thread go on, which may end what is late meanwhile
            return Memory(output.numpy().reshape(-1).view(f"i{spec.dtype.itemsize}"))
        return Memory(as_bits(output.detach().as_strided((self._span,), (1,))).view(-1))
