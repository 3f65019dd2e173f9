"""Texts that others wrote, as a terminal may have them: names in a database, messages of compilers and plugins."""

from __future__ import annotations

import re

# C0 but for tabs and line ends, DEL, C1, what reorders a line, and halves of characters, which cannot be written
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """``text`` with what moves a cursor, colours, hides or reorders written as ``\\x1b``; line ends and tabs stay."""
    if text.isprintable():  # nearly all are, and the pattern takes ten times as long
        return text
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
