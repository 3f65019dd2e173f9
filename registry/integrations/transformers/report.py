"""What ``apply`` has replaced in a model, and what it has left, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class ApplyReport:
    """``replaced``: for each part of a model the names of its modules; ``left``: for each reason likewise."""

    replaced: dict[str, list[str]] = field(default_factory=dict)
    left: dict[str, list[str]] = field(default_factory=dict)

    def add(self, part: str, name: str) -> None:
        """Note a replaced module."""
        self.replaced.setdefault(part, []).append(name)

    def leave(self, reason: str, name: str) -> None:
        """Note a module that stays as it is."""
        self.left.setdefault(reason, []).append(name)

    def include(self, part: ApplyReport, name: str) -> None:
        """Note what was replaced and left in the module of this name; ``part`` names modules from there on."""
        for mine, its in ((self.replaced, part.replaced), (self.left, part.left)):
            for what, names in its.items():
                mine.setdefault(what, []).extend(f"{name}.{one}".lstrip(".") for one in names)

    def __str__(self) -> str:
        lines = [*_lines("replaced", self.replaced), *_lines("left", self.left)]
        return "\n".join(lines) or "nothing to replace"


def _lines(title: str, groups: Mapping[str, list[str]]) -> list[str]:
    return [f"{title:9}{_shown(names)}: {what}" for what, names in groups.items()]


def _shown(names: list[str]) -> str:
    shown = names[0] or "the model itself"
    return shown if len(names) == 1 else f"{len(names)} modules, e.g. {shown}"
