"""``tune --dry-run``: plans the problems, and reads which have a winner that would stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .request import TuneRequest

if TYPE_CHECKING:
    from ...device import Device
    from ...discovery.catalog import Catalog
    from ...tuner.planning.problems import ProblemPlan
    from ...tuner.shapes.shapes import Shapes
    from ...tuner.stored_winners import StandingWinner


def show_plan(
    request: TuneRequest, shapes: Shapes, catalog: Catalog, devices: Sequence[Device], notes: Sequence[str]
) -> None:
    """Print what a run would try on each kind of hardware, and which stored winners it would leave alone or race."""
    from ...device import by_hardware
    from ...tuner.planning.compiling import with_launches_checked
    from ...tuner.planning.problems import plan
    from ...tuner.planning.ranges import represented
    from ..display.dry_run import PlannedRun, show

    wanted = represented(shapes.all, shapes.counts, catalog.op, every=request.all_sizes)
    planned = []
    for group in by_hardware(devices):
        every = plan(wanted.problems, catalog, group[0], request.implementations)
        plans = [with_launches_checked(one) for one in every]
        planned.append(PlannedRun(group, plans, _standing(request, group[0], plans)))
    show(planned, (*notes, *wanted.notes), json=request.json)


def _standing(request: TuneRequest, device: Device, plans: Sequence[ProblemPlan]) -> list[StandingWinner]:
    """The stored winners that a run would find valid; none where it would not look for any."""
    from tuning_db import Environment, MissingDatabaseError, Store

    from ...tuner.stored_winners import StoredWinners

    if request.retune or (request.sandbox and request.db is None):
        return []
    try:
        with Store.open(request.db, create=False, migrate=False) as store:
            winners = StoredWinners(store, Environment(device.hardware(), device.software()), request.regime)
            return [found for plan in plans if (found := winners.standing(plan)) is not None]
    except MissingDatabaseError:
        return []
