"""Stored calibrations: the same entries timed on several devices of a model."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from .tables import FleetCalibrationRow

DeviceTimes = Mapping[str, Mapping[str, float]]
"""Identity of a device -> calibration entry -> time in µs."""


def newest(session: Session, device: str) -> DeviceTimes:
    """The newest time of each entry on each device of a model."""
    row = FleetCalibrationRow
    last = select(func.max(row.id)).where(row.device == device).group_by(row.identity, row.entry)
    found: dict[str, dict[str, float]] = {}
    for identity, entry, us in session.execute(select(row.identity, row.entry, row.us).where(row.id.in_(last))):
        found.setdefault(identity, {})[entry] = us
    return found
