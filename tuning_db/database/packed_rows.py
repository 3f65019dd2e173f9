"""Columns of thousands of rows, each packed into one text by SQLite, from which a value is cut when it is asked for.

A row as a tuple of Python objects takes longer than SQLite needs to find it: for ten thousand winners 33 ms against 19.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from .answering import Ask

SEPARATOR = b"\x1e"
"""The byte between two values: ASCII's record separator, which no JSON text and no identifier contains."""

_PACKED = "SELECT count(*), {columns} {source}"
_COLUMN = f"CAST(group_concat(ifnull({{}}, ''), '{SEPARATOR.decode()}') AS BLOB)"

ColumnKind = Literal["text", "number"]


class PackedTexts(Sequence[str | None]):
    """Texts in one array of bytes with a ``SEPARATOR`` between two; None for one that is not UTF-8."""

    def __init__(self, data: bytes, count: int) -> None:
        """Raises ValueError unless ``data`` holds ``count`` texts."""
        self._data = data
        self._count = count
        found = np.count_nonzero(self._is_separator) + 1 if count else 0
        if found != count:
            raise ValueError(f"{found} texts, expected {count}")

    @property
    def _is_separator(self) -> NDArray[np.bool_]:
        return np.equal(np.frombuffer(self._data, np.uint8), SEPARATOR[0])

    @cached_property
    def _ends(self) -> NDArray[np.integer[Any]]:
        """The places in the data where the texts end."""
        found = np.append(np.flatnonzero(self._is_separator), len(self._data))
        return found.astype(np.int64 if len(self._data) >= 2**31 else np.int32)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> str | None: ...

    @overload
    def __getitem__(self, place: slice) -> list[str | None]: ...

    def __getitem__(self, place: int | slice) -> str | list[str | None] | None:
        if isinstance(place, slice):
            first, last, step = place.indices(self._count)
            if step == 1 and first < last:
                return _texts(self._cut(first, last))
            return [self[each] for each in range(first, last, step)]
        if not 0 <= place < self._count:
            raise IndexError(place)
        return _text(self._cut(place, place + 1))

    def _cut(self, first: int, last: int) -> bytes:
        """The texts from ``first`` up to ``last``, with the separators between them."""
        return self._data[int(self._ends[first - 1]) + 1 if first else 0 : int(self._ends[last - 1])]

    def __iter__(self) -> Iterator[str | None]:
        return iter(self[:])

    def raw(self) -> list[bytes]:
        """The texts as they are stored."""
        return self._data.split(SEPARATOR) if self._count else []

    def unlike(self, text: str) -> list[int]:
        """The places of the other texts than ``text``."""
        raw = text.encode()
        if self._data == SEPARATOR.join([raw] * self._count):
            return []
        return [place for place, each in enumerate(self.raw()) if each != raw]


def unlike(column: Sequence[Any], text: str) -> list[int]:
    """The places of the other values than ``text`` in a column."""
    if isinstance(column, PackedTexts):
        return column.unlike(text)
    return [place for place, each in enumerate(column) if each != text]


def at(column: Sequence[Any], places: Sequence[int]) -> list[Any]:
    """The values of a column at ascending ``places``, which in most cases follow one another."""
    if places and places[-1] - places[0] == len(places) - 1:
        return list(column[places[0] : places[-1] + 1])
    return [column[place] for place in places]


def places_of_each(column: Sequence[Any]) -> dict[Any, list[int]]:
    """The places of each value of a column, in which equal values mostly follow one another."""
    values = column.raw() if isinstance(column, PackedTexts) else column
    found: dict[Any, list[int]] = {}
    for value, places in groupby(range(len(values)), values.__getitem__):
        found.setdefault(value, []).extend(places)
    if isinstance(column, PackedTexts):
        return {_text(value): places for value, places in found.items()}
    return found


def read_columns(
    ask: Ask, columns: Mapping[str, ColumnKind], source: str, values: Mapping[str, Any]
) -> list[Sequence[Any]]:
    """The columns of the rows that a query finds: ``columns`` are its expressions, ``source`` is all from its FROM on.

    A number that is none, and a text in a column of numbers, are returned as they are stored.
    """
    if ask.is_file:
        packed = ask(_PACKED.format(columns=", ".join(map(_COLUMN.format, columns)), source=source), values)
        try:
            return _unpacked(packed[0], list(columns.values()))
        except ValueError:  # a value that contains a separator, or a number that is none
            pass
    as_stored = [f"CAST({name} AS TEXT)" if kind == "text" else name for name, kind in columns.items()]
    rows = ask(f"SELECT {', '.join(as_stored)} {source}", values)
    return [*zip(*rows, strict=True)] if rows else [()] * len(columns)


def _unpacked(packed: Sequence[Any], kinds: Sequence[ColumnKind]) -> list[Sequence[Any]]:
    """The columns of a packed row. Raises ValueError if a column does not hold one value for each row."""
    count, *columns = packed
    return [
        PackedTexts(data or b"", count) if kind == "text" else _numbers(data or b"", count)
        for kind, data in zip(kinds, columns, strict=True)
    ]


def _numbers(data: bytes, count: int) -> array[int]:
    """The numbers in a packed column. Raises ValueError unless they are ``count`` numbers of 64 bits."""
    if data.translate(None, b"0123456789-" + SEPARATOR):  # what Python takes for a number, but SQLite does not
        raise ValueError("a number has other characters than digits")
    try:
        texts = data.split(SEPARATOR) if count else []
        known = {text: int(text) for text in set(texts)}
        # a number that all have, as they mostly have the version, is not looked up for each
        found = array("q", known.values()) * count if len(known) == 1 else array("q", map(known.__getitem__, texts))
    except OverflowError as fault:
        raise ValueError(str(fault)) from fault
    if len(texts) != count:
        raise ValueError(f"{len(texts)} numbers, expected {count}")
    return found


def _texts(raw: bytes) -> list[str | None]:
    try:
        return [*raw.decode().split(SEPARATOR.decode())]
    except UnicodeDecodeError:
        return [*map(_text, raw.split(SEPARATOR))]


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
