"""Stored calibrations: the same entries timed on several devices of a model."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from .tables import FleetCalibrationRow, FleetWorkerRow

DeviceTimes = Mapping[str, Mapping[str, float]]
"""Identity of a device -> calibration entry -> time in µs."""


def newest(session: Session, device: str, software: Mapping[str, str]) -> DeviceTimes:
    """The newest time of each entry on each device of a model; devices are left out whose newest is of other software.

    With another driver or torch a whole kind may be slower.
    """
    row = FleetCalibrationRow
    last = select(func.max(row.id)).where(row.device == device).group_by(row.identity, row.entry)
    query = select(row.identity, row.entry, row.us, FleetWorkerRow.software).join(
        FleetWorkerRow, FleetWorkerRow.id == row.worker_id
    )
    found: dict[str, dict[str, float]] = {}
    for identity, entry, us, under in session.execute(query.where(row.id.in_(last))):
        if under == dict(software):
            found.setdefault(identity, {})[entry] = us
    return found
