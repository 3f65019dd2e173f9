"""Columns that SQLite packs into one text each: the values are those of the rows, whatever a row holds."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tuning_db.database.answering import AnsweredRow, Ask
from tuning_db.database.packed_rows import SEPARATOR, ColumnKind, PackedTexts, at, places_of_each, read_columns, unlike

COLUMNS: dict[str, ColumnKind] = {"word": "text", "amount": "number"}
CUT = SEPARATOR.decode()

NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
VALUES: st.SearchStrategy[Any] = st.none() | st.binary() | st.text(st.characters(codec="utf-8")) | NUMBERS
LIKE_NUMBERS = st.text("0123456789-+_. e" + CUT)


def read(rows: Sequence[tuple[Any, Any]], *, is_file: bool = True) -> tuple[list[Sequence[Any]], int]:
    """Both columns of a table with these rows, and the number of queries that this took."""
    asked: list[str] = []
    with closing(sqlite3.connect(":memory:")) as raw:
        raw.text_factory = lambda text: text.decode(errors="replace")
        raw.execute("CREATE TABLE stored (word TEXT, amount INTEGER)")
        raw.executemany("INSERT INTO stored VALUES (?, ?)", rows)

        def answer(query: str, values: Any) -> list[AnsweredRow]:
            asked.append(query)
            return raw.execute(query, values).fetchall()

        found = read_columns(Ask(answer, is_file), COLUMNS, "FROM stored ORDER BY rowid", {})
    return found, len(asked)


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_a_column_holds_the_values_of_the_rows(count: int) -> None:
    rows = [(f"the number {number} é"[: number % 17], number * (-(2**40)) ** (number % 2)) for number in range(count)]
    (words, amounts), asked = read(rows)
    assert asked == 1
    assert isinstance(words, PackedTexts)
    assert [*words] == [words[place] for place in range(count)] == [word for word, _ in rows]
    assert [*amounts] == [amount for _, amount in rows]
    assert [*map(len, (words, amounts))] == [count, count]
    with pytest.raises(IndexError):
        words[count]


@given(st.lists(st.tuples(VALUES, VALUES | LIKE_NUMBERS), max_size=4))
@example([("a", "1_0")])
@example([("a", " 7"), ("b", "-")])
@example([(None, 1), (f"a{CUT}b", 2), ("c", 3)])
@example([("", None), ("", f"1{CUT}2")])
@example([("", "1-2")])
def test_whatever_a_row_holds_its_values_are_those_that_are_read_row_by_row(rows: list[tuple[Any, Any]]) -> None:
    (words, amounts), _ = read(rows)
    (plain_words, plain_amounts), asked = read(rows, is_file=False)
    assert asked == 1
    assert [*amounts] == [*plain_amounts]
    assert [*map(type, amounts)] == [*map(type, plain_amounts)]
    for word, plain in zip(words, plain_words, strict=True):
        # bytes that are no text are None in a packed column, and NULL is an empty text
        assert word == plain or (word is None and "\ufffd" in plain) or (word, plain) == ("", None)


def test_bytes_that_are_no_text_are_found_out_one_by_one() -> None:
    texts = PackedTexts(SEPARATOR.join([b"one", b"\xff", b"three"]), 3)
    assert [*texts] == texts[:] == ["one", None, "three"]
    assert texts[1:3] == [None, "three"]
    assert texts[::-2] == ["three", "one"]
    with pytest.raises(ValueError, match="3 texts, expected 2"):
        PackedTexts(SEPARATOR.join([b"one", b"\xff", b"three"]), 2)


@pytest.mark.parametrize("packed", [True, False])
def test_columns_are_asked_for_places_and_values(packed: bool) -> None:
    texts = ["a", "b", "b", "a", "", "b"]
    column: Sequence[Any] = PackedTexts(CUT.join(texts).encode(), 6) if packed else texts
    assert at(column, [1, 2, 3]) == ["b", "b", "a"]
    assert at(column, [0, 5]) == ["a", "b"]
    assert at(column, []) == []
    assert places_of_each(column) == {"a": [0, 3], "b": [1, 2, 5], "": [4]}
    assert unlike(column, "b") == [0, 3, 4]
