"""What trials have tried: of two runs that try a candidate at once, the trial of one is stored."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import cast

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from . import reading
from .identity_rows import MEASURED_IDS, Identities
from .models import TrialRow
from .records import Trial

TriedPlace = tuple[int, int, int, int, int, str]
"""What a trial has tried under which conditions: its ``MEASURED_IDS``, and the hash of its artifact."""

_LOCK = text(
    "SELECT pg_advisory_xact_lock(problem, candidate) FROM unnest(CAST(:problems AS int[]), CAST(:candidates AS int[]))"
    " AS place (problem, candidate) ORDER BY problem, candidate"
)


def hold(session: Session, identities: Identities, trials: Iterable[Trial]) -> None:
    """Locks the trials' candidates until the transaction ends, after other writers about them.

    SQLite has one writer anyway.
    """
    if session.get_bind().dialect.name == "postgresql":
        places = {identities.measured(trial)[:2] for trial in trials}
        problems, candidates = zip(*places, strict=True)
        # a volatile function is called after the rows were sorted: in one order by everybody
        session.execute(_LOCK, {"problems": list(problems), "candidates": list(candidates)})


def others_of(
    session: Session, run: str, trials: Sequence[Trial], identities: Identities, since: int, statuses: Collection[str]
) -> list[Trial | None]:
    """The last trial of each one's candidate and problem by another run, stored after row ``since``; None without any.

    Only trials with one of these ``statuses`` count.
    """
    places = [_place(trial, identities) for trial in trials]
    numbers = _latest(session, run, set(places), since, statuses)
    if not numbers:
        return [None] * len(places)
    query = reading.select_trials().where(TrialRow.id.in_(sorted(numbers.values())))
    found = {row.id: other for row, other in reading.trials_of(session, query)}
    return [found[numbers[place]] if place in numbers else None for place in places]


def _latest(
    session: Session, run: str, places: Collection[TriedPlace], since: int, statuses: Collection[str]
) -> dict[TriedPlace, int]:
    """The row numbers of other runs' last trials at these places; seldom are there any, and no table is joined."""
    columns = [sorted(set(column)) for column in zip(*places, strict=True)]
    query = select(TrialRow.id, *(getattr(TrialRow, name) for name in MEASURED_IDS), TrialRow.artifact_hash).where(
        TrialRow.id > since,
        TrialRow.run_id != run,
        TrialRow.status.in_(sorted(statuses)),
        *(
            getattr(TrialRow, name).in_(sorted(set(column)))
            for name, column in zip(MEASURED_IDS, columns, strict=False)
        ),
    )
    found = {cast(TriedPlace, tuple(place)): number for number, *place in session.execute(query.order_by(TrialRow.id))}
    return {place: number for place, number in found.items() if place in places}


def _place(trial: Trial, identities: Identities) -> TriedPlace:
    return *identities.measured(trial), trial.artifact_hash
