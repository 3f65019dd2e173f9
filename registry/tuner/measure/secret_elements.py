"""Elements of stacked tensors that change from sample to sample, at places that are drawn at random.

A candidate never meets inputs again while it is timed: to remember results by some elements, or by a checksum of all,
then gains nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from .stack import Stack

_STEPS = 32
"""Changes that are drawn together; each of them writes only a few elements."""
_MOST_SEEN = 65_536
_TRIES = 3
"""Elements that are drawn for one that has to differ from what is there: of booleans every second does not."""


class SecretElements:
    """Changes one element of each tensor of a stack, another at each ``change``, which first undoes the last one.

    An element becomes the least or the greatest of the stack's own finite numbers, whichever is farther from it:
    results that depend on it then differ clearly, and no value is new to the op. Both are looked for once for the
    values that are shown: to move elements makes no new ones.

    Elements that are no floating numbers change where they are ``independent``: any may have the value of any other.
    An integer may be an index or a code, of which no order is known: it becomes another element of its own tensor.
    """

    def __init__(self, stack: Stack, generator: torch.Generator, *, independent: bool = False) -> None:
        self._stack = stack
        self._memory = Memory(stack.bits)
        self._generator = generator
        self._is_changeable = (stack.dtype.is_floating_point or independent) and stack.numel > 0
        self._places = torch.empty(0)
        self._left = 0
        """Rows of places that are drawn and not used."""
        self._rows: tuple[Any, Any, Any] | None = None
        """Rows of places, of the bits that belong there, and of those that replace them; None: to be read again."""
        self._changed: tuple[Any, Any] | None = None
        self._shown = ""
        self._extremes: dict[str, _Extremes] = {}
        """Name of shown values -> their extremes."""

    def change(self) -> None:
        """Put the elements of the last change back, and change others, one in each tensor, if they are changeable."""
        self.restore()
        if not self._is_changeable:
            return
        if not self._left:
            self._places, self._left, self._rows = self._stack.places(_STEPS, self._generator), _STEPS, None
        if self._rows is None:
            self._rows = self._read()
        self._left -= 1
        places, was, instead = (rows[self._left] for rows in self._rows)
        self._memory.write(places, instead)
        self._changed = places, was

    def restore(self) -> None:
        if self._changed is not None:
            self._memory.write(*self._changed)
            self._changed = None

    def forget(self) -> None:
        """Forget the present change: elements were overwritten by others of the values that are shown."""
        self._rows = self._changed = None

    def show(self, name: str) -> None:
        """Forget the present change: other values are shown. Equal names mean equal values, except for an empty one."""
        self.forget()
        self._shown = name
        self._extremes.pop("", None)

    def _read(self) -> tuple[Any, Any, Any]:
        was = self._stack.bits.take(self._places)
        instead = self._farther(was) if self._stack.dtype.is_floating_point else self._others(was)
        return self._memory.rows(self._places), self._memory.rows(was), self._memory.rows(instead)

    def _farther(self, bits: torch.Tensor) -> torch.Tensor:
        if self._shown not in self._extremes:
            self._extremes[self._shown] = _Extremes.of(self._stack)
        return self._extremes[self._shown].farther(bits)

    def _others(self, bits: torch.Tensor) -> torch.Tensor:
        """Other elements of the same tensors: for each the last of a few that differs from it, if one does."""
        found = bits
        for _ in range(_TRIES):
            drawn = self._stack.bits.take(self._stack.places(_STEPS, self._generator))
            found = torch.where(drawn == bits, found, drawn)
        return found


@dataclass(frozen=True)
class _Extremes:
    """Bits of the least and of the greatest finite number, and the number in their middle, on the device."""

    dtype: torch.dtype
    least: torch.Tensor
    greatest: torch.Tensor
    middle: torch.Tensor

    @classmethod
    def of(cls, stack: Stack) -> _Extremes:
        seen = stack.some(_MOST_SEEN)
        numbers = seen.view(stack.dtype).double()
        low = numbers.nan_to_num(math.inf, math.inf, math.inf).argmin()
        high = numbers.nan_to_num(-math.inf, -math.inf, -math.inf).argmax()
        # take: an index in brackets would be read by the host, which waits for the device
        middle = numbers.take(low).mul_(0.5).add_(numbers.take(high), alpha=0.5)
        return cls(stack.dtype, seen.take(low), seen.take(high), middle)

    def farther(self, bits: torch.Tensor) -> torch.Tensor:
        """For each number, given as bits, the bits of the extreme that is farther from it."""
        numbers = bits.view(self.dtype)
        # torch compares no floats of one byte
        comparable = numbers.double() if self.dtype.itemsize == 1 else numbers
        return torch.where(comparable > self.middle, self.least, self.greatest)


class FlippedElements:
    """Changes one element of each tensor of a stack, another at each ``change``, to another plausible number."""

    def __init__(self, stack: Stack, generator: torch.Generator) -> None:
        self._stack = stack
        self._memory = Memory(stack.bits)
        self._generator = generator
        self._rows: Any = None
        self._left = 0
        """Rows of places that are drawn and not used."""
        self._mask = flipping_mask(stack.dtype)

    def change(self) -> None:
        if not self._stack.numel:
            return
        if not self._left:
            self._rows, self._left = self._memory.rows(self._stack.places(_STEPS, self._generator)), _STEPS
        self._left -= 1
        self._memory.flip(self._rows[self._left], self._mask)


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

    def rows(self, table: torch.Tensor) -> Any:
        """A table of places or bits whose rows ``write`` and ``flip`` take."""
        return table.numpy() if table.device.type == "cpu" else table

    def indices(self, places: torch.Tensor) -> Any:
        """Places that are known on the host, in the form that ``read`` and ``flip`` take."""
        if not isinstance(self._bits, torch.Tensor):
            return places.numpy()
        # the launch that comes next is queued behind others: to wait for these would lose its head start
        return places.to(self._bits.device, non_blocking=True)

    def read(self, places: Any) -> Any:
        # on a GPU torch's own indexing takes the host twice as long
        return self._bits.take(places)

    def write(self, places: Any, bits: Any) -> None:
        if isinstance(self._bits, torch.Tensor):
            self._bits.scatter_(0, places, bits)
        else:
            self._bits[places] = bits

    def flip(self, places: Any, mask: int) -> None:
        places = places.reshape(-1)
        bits = self.read(places)
        bits ^= mask
        self.write(places, bits)
