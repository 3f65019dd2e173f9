"""Elements of stacked tensors that change from sample to sample, at places that are drawn at random.

A candidate never meets inputs again while it is timed: to remember results by some elements, or by a checksum of all,
then gains nothing.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .stack import Stack

_STEPS = 32
"""Changes that are drawn together; each of them writes only a few elements."""
_MOST_SEEN = 65_536


class SecretElements:
    """Changes one element of each tensor of a stack, another at each ``change``, which first undoes the last one.

    An element becomes the least or the greatest of the stack's own finite numbers, whichever is farther from it:
    results that depend on it then differ clearly, and no value is new to the op.
    """

    def __init__(self, stack: Stack, generator: torch.Generator) -> None:
        self._stack = stack
        self._memory = Memory(stack.bits)
        self._generator = generator
        self._steps: list[tuple[Any, Any, Any]] = []
        """Steps: places, the bits that belong there, and the bits that replace them."""
        self._changed: tuple[Any, Any] | None = None

    def change(self) -> None:
        """Put the elements of the last change back, and change others: a floating number in each tensor."""
        self.restore()
        self._steps = self._steps or self._drawn()
        if self._steps:
            places, was, instead = self._steps.pop()
            self._memory.write(places, instead)
            self._changed = places, was

    def restore(self) -> None:
        if self._changed is not None:
            self._memory.write(*self._changed)
            self._changed = None

    def forget(self) -> None:
        """Forget the present change: the tensors were overwritten."""
        self._steps, self._changed = [], None

    def _drawn(self) -> list[tuple[Any, Any, Any]]:
        dtype = self._stack.dtype
        if not dtype.is_floating_point or not self._stack.numel:
            return []
        places = self._stack.places(_STEPS, self._generator)
        was = self._stack.bits[places]
        seen = self._stack.some(_MOST_SEEN)
        numbers = _numbers(seen, dtype)
        low = seen[numbers.nan_to_num(math.inf, math.inf, math.inf).argmin()]
        high = seen[numbers.nan_to_num(-math.inf, -math.inf, -math.inf).argmax()]
        here, least, greatest = (_numbers(bits, dtype) for bits in (was, low, high))
        instead = torch.where((here - least).abs() > (here - greatest).abs(), low, high)
        return list(zip(*map(self._memory.rows, (places, was, instead)), strict=True))


class FlippedElements:
    """Changes one element of each tensor of a stack, another at each ``change``, to another plausible number."""

    def __init__(self, stack: Stack, generator: torch.Generator) -> None:
        self._stack = stack
        self._memory = Memory(stack.bits)
        self._generator = generator
        self._places: list[Any] = []
        self._mask = flipping_mask(stack.dtype)

    def change(self) -> None:
        if not self._stack.numel:
            return
        self._places = self._places or self._memory.rows(self._stack.places(_STEPS, self._generator))
        self._memory.flip(self._places.pop(), self._mask)


def flipping_mask(dtype: torch.dtype) -> int:
    """The bits of an element that are flipped to make it another plausible number."""
    dtype = dtype.to_real() if dtype.is_complex else dtype
    # the last bit of the exponent and the first of the mantissa: a number of about the same size
    return 3 << (round(-math.log2(torch.finfo(dtype).eps)) - 1) if dtype.is_floating_point else 1


class Memory:
    """A row of integers, some of which are written: on a CPU by NumPy, which disturbs the caches less than torch.

    After torch's operators the next 16 launches of 3 µs took 3% longer.
    """

    def __init__(self, bits: Any) -> None:
        """``bits``: integers, as a tensor or NumPy's array."""
        self._bits = bits.numpy() if isinstance(bits, torch.Tensor) and bits.device.type == "cpu" else bits

    def rows(self, table: torch.Tensor) -> list[Any]:
        """The rows of a table of places or bits, in the form that ``write`` takes."""
        return list(table.numpy() if table.device.type == "cpu" else table.unbind())

    def indices(self, places: torch.Tensor) -> Any:
        """Places that are known on the host, in the form that ``read`` and ``flip`` take."""
        if not isinstance(self._bits, torch.Tensor):
            return places.numpy()
        # the launch that comes next is queued behind others: to wait for these would lose its head start
        return places.to(self._bits.device, non_blocking=True)

    def read(self, places: Any) -> Any:
        return self._bits[places]

    def write(self, places: Any, bits: Any) -> None:
        self._bits[places] = bits

    def flip(self, places: Any, mask: int) -> None:
        self._bits[places] ^= mask


def _numbers(bits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # torch computes nothing with floats of one byte, and float64 has the range of all
    return bits.view(dtype).double()
