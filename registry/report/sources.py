"""The source of an implementation, as a page shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class InstalledSource:
    """The installed source of an implementation: its fingerprint, and (name of a module or kernel text, text) of each.

    ``fault`` is why it could not be read, "" if it could.
    """

    fingerprint: str = ""
    texts: Sequence[tuple[str, str]] = ()
    fault: str = ""
