"""Stored calibrations: the same entries timed on several devices of a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from .clock import DatabaseSeconds
from .tables import FleetCalibrationRow, FleetWorkerRow

DeviceTimes = Mapping[str, Mapping[str, float]]
"""Identity of a device -> calibration entry -> time in µs."""

_RECENT_S = 30 * 86_400.0
"""Older calibrations are not read: a fleet adds thousands a day, and a device that has gone is no measure."""


def newest(session: Session, device: str, software: Mapping[str, str], entries: Collection[str]) -> DeviceTimes:
    """The newest time of these entries on each device of a model, of the last month.

    Devices are left out whose newest is of other software: with another driver or torch a whole kind may be slower.
    """
    row = FleetCalibrationRow
    query = select(row.identity, row.entry, row.us, FleetWorkerRow.software).join(
        FleetWorkerRow, FleetWorkerRow.id == row.worker_id
    )
    last = latest_rows(device, entries)
    found: dict[str, dict[str, float]] = {}
    for identity, entry, us, under in session.execute(query.where(row.id.in_(last))):
        if under == dict(software):
            found.setdefault(identity, {})[entry] = us
    return found


def latest_rows(device: str, entries: Collection[str]) -> Select[Any]:
    """The number of the newest row of each device of a model and entry; read from the index of these."""
    row = FleetCalibrationRow
    recent = row.device == device, row.entry.in_(sorted(entries)), row.at > DatabaseSeconds() - _RECENT_S
    return select(func.max(row.id)).where(*recent).group_by(row.identity, row.entry)
