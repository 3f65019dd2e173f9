"""Prints the notes of a release, its section of CHANGELOG.md.

python docs/release_notes.py VERSION
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"

_SECTION = re.compile(r"^## (\S+)(?: \(([^)\n]*)\))?\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def notes(changelog: str, version: str) -> str:
    """The section of a version, without its heading. Raises ValueError if it is missing, or has no date yet."""
    sections = {found[1]: found for found in _SECTION.finditer(changelog)}
    if version not in sections:
        raise ValueError(f"CHANGELOG.md has no section {version!r}; it has {', '.join(sections) or 'none'}")
    _, date, text = sections[version].groups()
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date or ""):
        raise ValueError(f"the section {version} of CHANGELOG.md is dated {date!r}, expected e.g. 2026-01-31")
    return text.strip() + "\n"


if __name__ == "__main__":
    try:
        sys.stdout.write(notes(CHANGELOG.read_text(encoding="utf-8"), *sys.argv[1:2] or [""]))
    except ValueError as fault:
        sys.exit(str(fault))
