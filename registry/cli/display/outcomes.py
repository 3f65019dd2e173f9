"""The outcomes of checks of a plugin, as lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import text

if TYPE_CHECKING:
    from ...checking.outcomes import CheckOutcome, PluginCheck

_WORDS = {"passed": "ok", "failed": "FAILED", "skipped": "skipped"}


def say_outcome(outcome: CheckOutcome) -> None:
    """Print an outcome with the resources of compiled kernels, and why it failed or was skipped."""
    text.say(
        f"{_WORDS[outcome.verdict]:<8}{outcome.name}: {outcome.subject} ({text.duration(outcome.seconds)})", hang=10
    )
    variants = outcome.details.get("variants", ())
    for kernel in dict.fromkeys(variant["kernel"] for variant in variants):
        alike = [variant for variant in variants if variant["kernel"] == kernel]
        text.say(f"{'':<10}{kernel or 'compiled'}: {_resources(alike)}", hang=12)
    for line in outcome.reason.splitlines():
        text.say(f"{'':<10}{line}", hang=12)


_UNITS = (
    ("registers", "registers", "d"),
    ("spill_bytes", "B spilled", "d"),
    ("shared_bytes", "B shared", "d"),
    ("threads", "threads", "d"),
    ("occupancy", "occupancy", ".2f"),
)


def _resources(variants: Sequence[Mapping[str, Any]]) -> str:
    """The number of variants of a kernel, and the least and the most of each resource that they need."""
    told = [text.plural(len(variants), "variant")]
    for name, unit, form in _UNITS:
        known = [variant[name] for variant in variants if variant.get(name) is not None]
        if known:
            least, most = (format(value, form) for value in (min(known), max(known)))
            told.append(f"{least if least == most else f'{least} to {most}'} {unit}")
    return ", ".join(told)


def total(done: PluginCheck) -> str:
    """``3 passed, 1 failed, 2 skipped``."""
    counts = {word: sum(each.verdict == word for each in done.outcomes) for word in ("passed", "failed", "skipped")}
    return ", ".join(f"{count} {word}" for word, count in counts.items())
