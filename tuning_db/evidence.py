"""How a decision's comparisons share one JSON column: ratios by implementation, the rest under the empty name.

No implementation has an empty name. Decisions that were stored before there was a rest have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .records import Decision, Interval

_REST = ""


def baselines_column(decision: Decision) -> dict[str, Any]:
    """What the column ``baselines`` holds of a decision."""
    rest: dict[str, Any] = {}
    if decision.default_ratio is not None:
        ratio = decision.default_ratio
        rest["default_ratio"] = [ratio.value, ratio.low, ratio.high]
    if decision.ties:
        rest["ties"] = list(decision.ties)
    return {**decision.baselines, **({_REST: rest} if rest else {})}


def read_baselines(column: Mapping[str, Any]) -> tuple[dict[str, float], Interval | None, tuple[str, ...]]:
    """``baselines``, ``default_ratio`` and ``ties`` of the decision that wrote the column."""
    rest = column.get(_REST, {})
    ratio = rest.get("default_ratio")
    ratios = {name: value for name, value in column.items() if name != _REST}
    return ratios, None if ratio is None else Interval(*ratio), tuple(rest.get("ties", ()))
