"""Runs of ``tune``: on this machine, or queued for a Ray cluster; both return the command's exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import app as application
from ..options import catalog_with
from ..problems.sandboxed import database_of, in_sandboxes, options_in_sandboxes
from .dry_run import show_plan
from .request import TuneRequest

if TYPE_CHECKING:
    from ...device import Device
    from ...discovery.catalog import Catalog
    from ...tuner.events import Result
    from ...tuner.shapes.shapes import Shapes
    from ..display.progress import Display

UNDECIDED = 1


def tune_here(request: TuneRequest) -> int:
    """Tune on devices of this machine, or show what would be tuned."""
    from ...device import Device, devices_of
    from ...tuner.processes import spawning
    from ...tuner.workers import preloading

    # the processes of the run import torch while this one reads the file
    with spawning.kept(preloading.ENTRY, now=not request.dry_run):
        devices = devices_of(Device.best().type if request.device is None else request.device)
        catalog = catalog_with(None if request.sandbox else request.plugins)
        shapes, notes = request.problems(catalog, devices[0])
        if request.sandbox:
            catalog, more = in_sandboxes(
                request.plugins, shapes, catalog, devices[0], every=request.all_sizes, kept=request.db is not None
            )
            notes = (*notes, *more)
        if request.dry_run:
            show_plan(request, shapes, catalog, devices, notes)
            return 0
        results, display = _tuned(request, shapes, catalog, devices, notes)
    display.conclude(results)
    return _exit_code(results, display)


def tune_on_cluster(request: TuneRequest, address: str) -> int:
    """Queue the problems for a Ray cluster, and tune them there."""
    from ...device import Device
    from ..fleet.on_ray import tune_on_fleet

    catalog = catalog_with(request.plugins)
    shapes, _ = request.problems(catalog, Device.best())
    return tune_on_fleet(
        shapes, catalog, address, request.device, request.db, request.options(), request.plugins, request.compilers
    )


def _tuned(
    request: TuneRequest, shapes: Shapes, catalog: Catalog, devices: Sequence[Device], notes: Sequence[str]
) -> tuple[tuple[Result, ...], Display]:
    """The results of a run, and what has shown it."""
    from ...tuner import run
    from ...tuner.events import Note

    options = request.options()
    if request.sandbox:
        options = options_in_sandboxes(options, catalog, devices[0])
    with database_of(request.db, sandbox=request.sandbox) as database, _display(json=request.json) as display:
        display.keeps = database == request.db
        for note in notes:
            display(Note(note))
        results = run.tune(
            shapes.all, catalog=catalog, device=devices, database=database, options=options, observer=display,
            counts=shapes.counts,
        )  # fmt: skip
    return results, display


def _display(*, json: bool) -> Display:
    from ..display.progress import JsonLines, LiveDisplay, PlainLines

    if json:
        return JsonLines()
    return LiveDisplay() if sys.stdout.isatty() else PlainLines()


def _exit_code(results: tuple[Result, ...], display: Display) -> int:
    if display.ended is not None and display.ended.interrupted:
        return application.ToldCode(application.INTERRUPTED)
    timed_out = display.ended is not None and display.ended.timed_out
    faulty = any(skipped.faulty for skipped in display.skipped)
    return UNDECIDED if timed_out or faulty or any(result.verdict == "none" for result in results) else 0
