"""Tells which modules and classes were written to, without a look at their names.

CPython up to 3.13 gives every dictionary a number that each write to it changes, and no other dictionary ever has
(PEP 509). Where there is no such number, every module and class counts as written to.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import zip_longest
from types import ModuleType
from typing import Any

# bound at import, and of builtin types, which cannot be patched
_joined, _view = b"".join, memoryview

_NUMBER = ctypes.c_uint64
_OFFSET = object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t)
"""Bytes before the number: the head of the object and the count of its names."""


class DictionaryWrites:
    """Modules and classes, and the numbers of their dictionaries at the last look."""

    def __init__(self) -> None:
        self._dictionaries: list[dict[str, Any]] = []
        self._numbers: list[memoryview] = []
        self._last = b""

    def watch(self, place: ModuleType | type) -> None:
        """Look at a module or class from now on."""
        found = dictionary_of(place)
        # kept alive: its number is read at its address
        self._dictionaries.append(found)
        self._numbers.append(_number_of(found))

    @property
    def are_numbered(self) -> bool:
        """Whether only places that were written to count as such."""
        return NUMBERED

    def since_the_last_look(self) -> Sequence[int]:
        """The places, in the order of ``watch``, that were written to since the last call or are new since then."""
        if not NUMBERED:
            return range(len(self._dictionaries))
        # 330 dictionaries in 8 µs
        last, self._last = self._last, _joined(self._numbers)
        if last == self._last:
            return ()
        pairs = zip_longest(_view(self._last).cast("Q"), _view(last).cast("Q"))
        return [place for place, (now, then) in enumerate(pairs) if now != then]


def dictionary_of(place: ModuleType | type) -> dict[str, Any]:
    """The dictionary of a module or class itself, which ``vars`` does not give of a class."""
    found = vars(place)
    if isinstance(found, dict):
        return found
    (inner,) = gc.get_referents(found)
    assert isinstance(inner, dict)
    return inner


def _number_of(dictionary: dict[str, Any]) -> memoryview:
    size = ctypes.sizeof(_NUMBER)
    return memoryview((ctypes.c_char * size).from_address(id(dictionary) + _OFFSET))


def _every_write_tells() -> bool:
    """Whether each kind of write to a module, a class and a dictionary changes its number."""
    for place in (ModuleType("written"), type("Written", (), {})):
        sets = (partial(setattr, place, "part", value) for value in (min, max))
        if not _each_tells((*sets, partial(delattr, place, "part")), dictionary_of(place)):
            return False
    names: dict[str, Any] = {}
    writes = (
        partial(names.__setitem__, "part", min),
        partial(names.update, part=max),
        partial(names.pop, "part"),
        partial(names.setdefault, "part", min),
        names.popitem,
        partial(names.__ior__, {"part": max}),
        names.clear,
    )
    return _each_tells(writes, names)


def _each_tells(writes: Iterable[Callable[[], object]], dictionary: dict[str, Any]) -> bool:
    number = _number_of(dictionary)
    seen = [bytes(number)]
    for write in writes:
        write()
        seen.append(bytes(number))
    return len(set(seen)) == len(seen)


NUMBERED = _every_write_tells()
"""Whether this interpreter numbers what was written to dictionaries."""
