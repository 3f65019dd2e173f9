"""Texts that others wrote, as a terminal may have them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry import RegistryError
from registry.untrusted.visible import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("ok\rno", r"ok\rno"),
        ("\x9b31m", r"\x9b31m"),
        ("\u202eexe.py", r"\u202eexe.py"),
        ("\udcff.py", r"\udcff.py"),
        ("a line\n\tand 12.3 µs × 2 ≈ Größe", "a line\n\tand 12.3 µs × 2 ≈ Größe"),
    ],
)
def test_what_a_terminal_would_act_on_is_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert RegistryError(text, hint=text).args[0].count(shown) == 2


@given(st.text(st.characters()))
def test_whatever_a_text_holds_it_can_be_printed(text: str) -> None:
    assert all(
        letter.isprintable() or letter in "\n\t" or ord(letter) > 0xFF
        for letter in visible(text).replace("\xa0", " ").replace("\xad", "")
    )
    visible(text).encode()
