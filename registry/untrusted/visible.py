"""Untrusted texts made safe for a terminal: names in a database, messages of compilers and plugins."""

from __future__ import annotations

import re

# C0 except tabs and line ends, DEL, C1, bidirectional controls, and lone surrogates, which cannot be encoded
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """``text`` with characters that control a terminal escaped, e.g. as ``\\x1b``; line ends and tabs stay."""
    if text.isprintable():  # nearly all texts are printable, and the pattern takes ten times as long
        return text
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
