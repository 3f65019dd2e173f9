"""``tune --fleet``: queues the problems, and works on them with a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..display import fleet_table, text

if TYPE_CHECKING:
    from ...discovery.catalog import Catalog
    from ...tuner.options import TuneOptions
    from ...tuner.shapes.shapes import Shapes


def tune_on_fleet(
    shapes: Shapes,
    catalog: Catalog,
    address: str,
    device: str | None,
    database: str | None,
    options: TuneOptions,
    plugins: Sequence[Path],
    compilers: int,
) -> int:
    """Queue the problems for each model of GPU in the cluster and tune them there; returns the exit code.

    Jobs that others have queued for these models are worked on, too.
    """
    from tuning_db import JobQueue

    from ...fleet.on_ray.driving import check_reach, drive, models_of, require_ray
    from ...fleet.on_ray.orders import ClusterOrders
    from ...fleet.planner import plan_fleet

    require_ray()
    url, kind = check_reach(database, address), "cpu" if device == "cpu" else "cuda"
    models = models_of(address, kind)
    with JobQueue.open(url) as queue:
        planned = plan_fleet(queue, shapes.all, models, catalog=catalog, options=options, counts=shapes.counts)
        for note in planned.notes:
            text.say(note)
        text.say(f"{text.plural(planned.added.jobs, 'job')} for {', '.join(models)} queued in {queue.url}")
        texts = {path.name: path.read_text() for path in plugins}
        orders = ClusterOrders(address, url, kind, plugins=texts, compilers=compilers, models=models)
        before = queue.status().failed
        drive(orders, queue, text.say)
        status = queue.status()
    fleet_table.show(status)
    return 1 if status.failed > before or planned.faulty else 0
