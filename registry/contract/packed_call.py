"""Packed arguments: one argument of a user's call that stands for several of the schema's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import InvalidDefinitionError

_PATH = re.compile(r"[a-z][a-z0-9_]*(\[\d+\])?\Z")


@dataclass(frozen=True)
class Packed:
    """A packed argument of the user's call, which replaces several consecutive arguments of the schema.

    ``parts``: the schema's name -> where it is in an object of exactly ``kind``, e.g. ``"qweight"`` or ``"shape[1]"``.
    """

    parameter: str
    kind: type
    parts: Mapping[str, str]

    def __post_init__(self) -> None:
        for name, path in self.parts.items():
            if not _PATH.match(path):
                raise InvalidDefinitionError(
                    f"packed {self.parameter}: {name} is at {path!r}", hint='expected e.g. "scales" or "shape[1]"'
                )
