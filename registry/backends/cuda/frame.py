"""The structs and argument values of a launch for the CUDA driver: laid out once, filled again by each call."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Sequence
from typing import Any

from ...artifact import Signature
from ...implementation import Launch
from ...problem import TensorSpec
from ..launch_checks import argument_of
from ..programmatic_launch import OPTION
from ..written_run import Operands

# struct CUlaunchConfig: grid and block extents, shared bytes, (padding,) stream, attributes, their count
_CONFIGURATION = struct.Struct("<7I4xQQI4x")
_STREAM_ON = "QQI4x"
_STREAM_OFFSET = 32
# struct CUlaunchAttribute: id, padding, a union of 64 bytes that begins with the cluster's extents, or with an int
_ATTRIBUTE = struct.Struct("<I4x3I52x")
_CLUSTER_DIMENSION = 4
_PROGRAMMATIC_STREAM_SERIALIZATION = 6
_EXTENTS = 7
_NUMBERS = {bool: ("?7x", 1), int: ("q", 8), float: ("f4x", 4)}


class Layout:
    """The source (group, place) of every argument of a sequence of launches, and its offset in a thread's memory.

    The memory holds the launches' configurations, then the tensors' addresses and the numbers that come with a call,
    packed anew by each call, and the literals, which stay. Launches of one form share a layout: it holds no size.
    """

    def __init__(self, launches: Sequence[Launch], signature: Signature, *, dependent: bool = True) -> None:
        """``dependent``: whether launches that ask for it are dependent ones."""
        self.count = len(launches)
        self.tensors: list[tuple[str, int]] = []
        self.numbers: list[tuple[str, int]] = []
        self._literals: list[tuple[str, int, int]] = []
        places = signature.operands
        slots: dict[str, int] = {}
        codes: list[str] = []
        base = _CONFIGURATION.size * len(launches)
        kinds = [[(argument, *kind_of(launch, argument, signature)) for argument in launch.args] for launch in launches]
        found = {argument: code for args in kinds for argument, code, _ in args if isinstance(argument, str)}
        for wanted, group in ((True, self.tensors), (False, self.numbers)):
            for argument, code in found.items():
                if (code == "Q") == wanted and places[argument].value is not None:
                    slots[argument] = base + 8 * len(codes)
                    codes.append(code)
                    group.append(places[argument][:2])
        self.size = base + 8 * len(codes)
        self.offsets = [
            [self._offset(slots, argument, code, place, number) for number, (argument, code, _) in enumerate(args)]
            for place, args in enumerate(kinds)
        ]
        # read by the driver at each launch, so that they live as long as the layout
        self.attributes = [_attributes(launch, dependent) for launch in launches]
        self._blocks = [block_of(launch) for launch in launches]
        self._shared = [launch.shared_bytes for launch in launches]
        # address and count of each launch's attributes
        self._attributes = [
            (ctypes.addressof(one), len(one) // _ATTRIBUTE.size) if len(one) else (0, 0) for one in self.attributes
        ]
        # made once here, since each new size of a call makes a frame for its thread
        self._memory = ctypes.c_char * max(self.size, 8)
        self._pointers = [ctypes.c_void_p * max(len(offsets), 1) for offsets in self.offsets]
        self._pack_literals = struct.Struct("<" + "".join(code for code, *_ in self._literals)).pack_into
        # a lone launch needs no more of its configuration than the stream
        self._whole = len(launches) > 1
        head = "7I4x" * self._whole + _STREAM_ON
        self.start = 0 if self._whole else _STREAM_OFFSET
        self.pack = struct.Struct("<" + head * len(launches) + "".join(codes)).pack_into

    def _offset(self, slots: dict[str, int], argument: Any, code: str, place: int, number: int) -> int:
        if isinstance(argument, str) and argument in slots:
            return slots[argument]
        self._literals.append((code, place, number))
        self.size += 8
        return self.size - 8

    def packed(self, addresses: Sequence[str], operands: Operands) -> list[str]:
        """Expressions for the arguments of ``pack`` after memory and offset; the stream is ``k_stream``."""
        texts: list[str] = []
        for place in range(self.count):
            extents = [f"k_extent_{place}_{number}" for number in range(_EXTENTS)] if self._whole else []
            texts += [*extents, "k_stream", *map(str, self._attributes[place])]
        return [*texts, *addresses, *(operands.at(group, place) for group, place in self.numbers)]

    def extents(self, places: Sequence[int]) -> tuple[dict[str, str], dict[str, int]]:
        """The names in the expressions of ``packed``: grids as texts for ``numbers_of``, and constants.

        ``places`` are the indices of these launches among all launches.
        """
        grids: dict[str, str] = {}
        fixed: dict[str, int] = {}
        for place, number in enumerate(places if self._whole else ()):
            grids |= {f"k_extent_{place}_{each}": f"{letter}{number}" for each, letter in enumerate("xyz")}
            rest = enumerate((*self._blocks[place], self._shared[place]), 3)
            fixed |= {f"k_extent_{place}_{each}": extent for each, extent in rest}
        return grids, fixed

    def _extents(self, place: int, launch: Launch) -> tuple[int, ...]:
        """Grid, block and shared bytes. Launches of one form have one block."""
        return (*(*launch.grid, 1, 1)[:3], *self._blocks[place], launch.shared_bytes)

    def frame(self, launches: Sequence[Launch]) -> tuple[Any, ...]:
        """New memory, and for each launch references to its configuration and to the addresses of its arguments."""
        memory = self._memory()
        start = ctypes.addressof(memory)
        # the name of an optional tensor that is absent: a null pointer
        values = [launches[place].args[number] for _, place, number in self._literals]
        values = [0 if type(value) is str else value for value in values]
        self._pack_literals(memory, self.size - 8 * len(values), *values)
        calls: list[Any] = []
        for place, offsets in enumerate(self.offsets):
            configuration = (*self._extents(place, launches[place]), 0, *self._attributes[place])
            _CONFIGURATION.pack_into(memory, _CONFIGURATION.size * place, *configuration)
            parameters = self._pointers[place](*[start + offset for offset in offsets])
            calls += [ctypes.byref(memory, _CONFIGURATION.size * place), ctypes.byref(parameters)]
        return (memory, *calls)


class Frames(threading.local):
    """One frame per thread: the call to the driver releases the GIL while it reads the frame."""

    def __init__(self, layout: Layout, launches: Sequence[Launch]) -> None:
        self.frame = layout.frame(launches)


def _attributes(launch: Launch, dependent: bool) -> Any:
    """The attributes of a launch in a row, shared by all threads, since they are only read."""
    found = [(_CLUSTER_DIMENSION, *_three(launch.cluster))] if launch.cluster else []
    if dependent and launch.options.get(OPTION):
        found.append((_PROGRAMMATIC_STREAM_SERIALIZATION, 1, 0, 0))
    packed = b"".join(_ATTRIBUTE.pack(*one) for one in found)
    return (ctypes.c_char * len(packed)).from_buffer_copy(packed)


def block_of(launch: Launch) -> tuple[int, int, int]:
    """The launch's threads per block: the option ``block``, an int or up to three extents."""
    block = launch.options.get("block")
    if isinstance(block, int):
        return block, 1, 1
    if isinstance(block, list | tuple) and 1 <= len(block) <= 3:
        return _three(block)
    shown = f"block is {block!r}" if "block" in launch.options else "block is missing"
    hint = 'expected the threads of a block, e.g. options={"block": 256}'
    raise launch.fault(f"kernel {launch.kernel}: the option {shown}", hint)


def kind_of(launch: Launch, argument: Any, signature: Signature) -> tuple[str, int]:
    """Format code (8 bytes each) and true size of an argument."""
    value = argument
    if isinstance(argument, str):
        value = argument_of(launch, lambda: f"kernel {launch.kernel}", argument, signature).value
        if value is None or isinstance(value, TensorSpec):
            return "Q", 8
    if type(value) not in _NUMBERS:
        hint = "expected the name of a tensor, as text, or a number"
        raise launch.fault(f"argument {argument!r} is a {type(value).__name__}", hint)
    return _NUMBERS[type(value)]


def _three(extents: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*extents, 1, 1, 1)[:3]
    return x, y, z
