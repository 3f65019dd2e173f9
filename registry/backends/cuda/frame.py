"""What a launch hands to the CUDA driver: structs and argument values, laid out once and refilled by each call."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from ...artifact import Signature
from ...errors import InvalidDefinitionError
from ...implementation import Launch
from ...problem import TensorSpec
from ...symbolic import is_symbolic, text_of
from ..written_run import Operands

# struct CUlaunchConfig: grid and block extents, shared bytes, (padding,) stream, attributes, their count
_CONFIGURATION = struct.Struct("<7I4xQQI4x")
_STREAM_ON = "QQI4x"
_STREAM_OFFSET = 32
# struct CUlaunchAttribute: id, padding, a union of 64 bytes that begins with the cluster's extents
_CLUSTER = struct.Struct("<I4x3I52x")
_CLUSTER_DIMENSION = 4
_NUMBERS = {bool: ("?7x", 1), int: ("q", 8), float: ("f4x", 4)}


class Layout:
    """Where every argument of a sequence of launches comes from (group, place) and where it lies in a thread's memory.

    The memory holds the launches' configurations, then the tensors' addresses, the numbers that come with a call, those
    that follow from its row count, all packed anew by each call, and the literals, which stay.
    """

    def __init__(self, names: Sequence[str], launches: Sequence[Launch], signature: Signature) -> None:
        self.launches = tuple(launches)
        self.tensors: list[tuple[str, int]] = []
        self.numbers: list[tuple[str, int]] = []
        self.literals: dict[int, tuple[str, Any]] = {}
        self.computed: list[Any] = []
        places = _places(signature)
        slots: dict[Any, int] = {}
        codes: list[str] = []
        base = _CONFIGURATION.size * len(self.launches)
        kinds = [
            [(argument, *kind_of(name, argument, signature)) for argument in launch.args]
            for name, launch in zip(names, launches, strict=True)
        ]
        found = {argument: code for args in kinds for argument, code, _ in args if isinstance(argument, str)}
        for wanted, group in ((True, self.tensors), (False, self.numbers)):
            for argument, code in found.items():
                if (code == "Q") == wanted and signature[argument] is not None:
                    slots[argument] = base + 8 * len(codes)
                    codes.append(code)
                    group.append(places[argument])
        for number, code in ((number, code) for args in kinds for number, code, _ in args if is_symbolic(number)):
            slots[id(number)] = base + 8 * len(codes)
            codes.append(code)
            self.computed.append(number)
        self.size = base + 8 * len(codes)
        self.offsets = [[self._offset(slots, argument, code) for argument, code, _ in args] for args in kinds]
        self.clusters = [_cluster(launch) for launch in self.launches]
        # a lone launch whose grid is fixed needs no more of its configuration than the stream
        self._whole = len(self.launches) > 1 or any(is_symbolic(extent) for one in launches for extent in one.grid)
        head = "7I4x" * self._whole + _STREAM_ON
        self.start = 0 if self._whole else _STREAM_OFFSET
        self.pack = struct.Struct("<" + head * len(self.launches) + "".join(codes)).pack_into

    def _offset(self, slots: dict[Any, int], argument: Any, code: str) -> int:
        if isinstance(argument, str) and argument in slots:
            return slots[argument]
        if is_symbolic(argument):
            return slots[id(argument)]
        self.literals[self.size] = (code, 0 if isinstance(argument, str) else argument)
        self.size += 8
        return self.size - 8

    def packed(self, addresses: Sequence[str], operands: Operands) -> list[str]:
        """Expressions of what ``pack`` takes behind memory and offset; the stream is ``k_stream``."""
        texts: list[str] = []
        for place in range(len(self.launches)):
            extents, rest = self._configuration(place)
            texts += [*(map(_shown, extents) if self._whole else ()), "k_stream", *map(str, rest)]
        numbers = (operands.at(group, place) for group, place in self.numbers)
        return [*texts, *addresses, *numbers, *map(text_of, self.computed)]

    def _configuration(self, place: int) -> tuple[tuple[Any, ...], tuple[int, int]]:
        """Grid, block and shared bytes; address and count of the attributes."""
        launch, cluster = self.launches[place], self.clusters[place]
        attributes = (0, 0) if cluster is None else (ctypes.addressof(cluster), 1)
        # threads and bytes are compiled in or settled by then: numbers even where the grid follows from the row count
        return (*_three(launch.grid), *map(int, block_of(launch)), int(launch.shared_bytes)), attributes

    def frame(self) -> tuple[Any, ...]:
        """New memory, and for each launch references to its configuration and to the addresses of its arguments."""
        memory = ctypes.create_string_buffer(max(self.size, 8))
        for offset, (code, value) in self.literals.items():
            struct.pack_into(f"<{code}", memory, offset, value)
        calls: list[Any] = []
        for place, offsets in enumerate(self.offsets):
            extents, attributes = self._configuration(place)
            fixed = (0 if is_symbolic(extent) else extent for extent in extents)
            _CONFIGURATION.pack_into(memory, _CONFIGURATION.size * place, *fixed, 0, *attributes)
            addresses = (ctypes.addressof(memory) + offset for offset in offsets)
            parameters = (ctypes.c_void_p * max(len(offsets), 1))(*addresses)
            calls += [ctypes.byref(memory, _CONFIGURATION.size * place), ctypes.byref(parameters)]
        return (memory, *calls)


class Frames(threading.local):
    """A frame for each thread: the call to the driver releases the GIL while it reads the frame."""

    def __init__(self, layout: Layout) -> None:
        self.frame = layout.frame()


def _cluster(launch: Launch) -> Any:
    """The launch's attribute, which all threads share, since nobody writes to it."""
    if not launch.cluster:
        return None
    attribute = ctypes.create_string_buffer(_CLUSTER.size)
    _CLUSTER.pack_into(attribute, 0, _CLUSTER_DIMENSION, *_three(launch.cluster))
    return attribute


def block_of(launch: Launch) -> tuple[int, int, int]:
    """The launch's threads per block: the option ``block``, an int or up to three extents."""
    block = launch.options.get("block")
    if isinstance(block, int):
        return block, 1, 1
    if isinstance(block, list | tuple) and 1 <= len(block) <= 3:
        return _three(block)
    raise launch.fault(f"kernel {launch.kernel}: option block={block!r}", "expected threads per block")


def kind_of(name: str, argument: Any, signature: Signature) -> tuple[str, int]:
    """Format code (8 bytes each) and true size of an argument."""
    value = argument
    if isinstance(argument, str):
        try:
            value = signature[argument]
        except KeyError:
            raise InvalidDefinitionError(
                f"kernel {name}: launch() names {argument!r}, which is no input, output, scratch or prepared tensor"
            ) from None
        if value is None or isinstance(value, TensorSpec):
            return "Q", 8
    if is_symbolic(value):
        return _NUMBERS[int if isinstance(value, int) else float]
    if type(value) not in _NUMBERS:
        raise InvalidDefinitionError(
            f"kernel {name}: argument {argument!r} is a {type(value).__name__}", hint="expected a tensor or a number"
        )
    return _NUMBERS[type(value)]


def _places(signature: Signature) -> dict[str, tuple[str, int]]:
    arguments = [*signature.arguments.values, *signature.prepared]
    groups: dict[str, Iterable[str]] = {
        "outputs": signature.outputs,
        "arguments": arguments,
        "scratch": signature.scratch,
    }
    places: dict[str, tuple[str, int]] = {}
    for group, names in groups.items():
        for place, name in enumerate(names):
            places.setdefault(name, (group, place))
    return places


def _shown(number: Any) -> str:
    return text_of(number) if is_symbolic(number) else str(number)


def _three(extents: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*extents, 1, 1, 1)[:3]
    return x, y, z
