"""Outcomes of the checks of a plugin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

CheckVerdict = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class CheckOutcome:
    """The outcome of one check.

    name     "load", "contract", "numerics", "compile", "tuned shapes", "capture", "two streams", "memcheck" or
             "racecheck"
    subject  the plugin, the op, or ``op/implementation``, with the architecture where there is one
    reason   the faults of a failed check, or why it was skipped; the warnings of one that passed
    details  the resources of compiled variants, and whatever else the check has found
    """

    name: str
    subject: str
    verdict: CheckVerdict
    reason: str = ""
    seconds: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PluginCheck:
    """Every outcome of the checks of one plugin."""

    plugin: str
    outcomes: Sequence[CheckOutcome]

    @property
    def ok(self) -> bool:
        """True if no check failed and at least one passed."""
        verdicts = {each.verdict for each in self.outcomes}
        return "failed" not in verdicts and "passed" in verdicts

    def as_data(self) -> dict[str, Any]:
        """The check as plain data."""
        return {"plugin": self.plugin, "ok": self.ok, "checks": [asdict(each) for each in self.outcomes]}
