"""Decisions of older schema versions: how a database that was not migrated is read, and how it is migrated.

Version 1 has no columns for a decision's ``default_ratio`` and ``ties``. Both stand in the JSON of its column
``baselines``, under the empty name, beside the ratios by implementation (no implementation has an empty name).
Version 2 has no column ``transfers``, version 5 no column ``artifact_hash``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Select
from sqlalchemy.orm import defer
from sqlalchemy.orm.attributes import set_committed_value

from .models import DecisionRow

_COMPARISONS = ""
"""The name in ``baselines`` under which version 1 keeps what later versions have columns for."""

_ADDED: Mapping[int, Mapping[str, Any]] = {3: {"transfers": {}}, 6: {"artifact_hash": ""}}
"""Columns by the version that added them, with what earlier decisions have there."""


def second_of_first(baselines: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of version 2, by name, for a decision whose column ``baselines`` in version 1 is given."""
    ratios = {name: value for name, value in baselines.items() if name != _COMPARISONS}
    comparisons = baselines.get(_COMPARISONS, {})
    value, low, high = comparisons.get("default_ratio", (None, None, None))
    return {
        "baselines": ratios,
        "default_ratio": value,
        "default_lo": low,
        "default_hi": high,
        "ties": list(comparisons.get("ties", ())),
    }


def without_new_columns(query: Select[Any], version: int) -> Select[Any]:
    """``query`` for decisions of a database of that version: it does not name the columns of later ones."""
    new = _columns({}, version).keys() - {"baselines"}
    return query.options(*(defer(getattr(DecisionRow, name), raiseload=True) for name in sorted(new)))


def completed(row: DecisionRow, version: int) -> DecisionRow:
    """``row``, read by a query :func:`without_new_columns`, with the columns of later versions filled in."""
    for name, value in _columns(row.baselines, version).items():
        set_committed_value(row, name, value)
    return row


def _columns(baselines: Mapping[str, Any], version: int) -> dict[str, Any]:
    """The columns that later versions added or changed, by name."""
    found = second_of_first(baselines) if version == 1 else {}
    for added, columns in _ADDED.items():
        found |= columns if version < added else {}
    return found
