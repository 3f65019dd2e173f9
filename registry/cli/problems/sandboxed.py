"""``tune --sandbox``: plugin files are asked in sandboxes, candidates run in sandboxes, and nothing else is kept."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import RegistryError
from ...untrusted.file_kinds import why_no_file

if TYPE_CHECKING:
    from ...device import Device
    from ...discovery.catalog import Catalog
    from ...tuner.options import TuneOptions
    from ...tuner.shapes.shapes import Shapes

_KEPT_NOWHERE = "nothing is kept: --db FILE keeps trials and winners, in a database of its own"
_OWN = "times of requests to a sandbox are not those of a call: give a database of its own, such as --db sandboxed.db"


def check_sandboxed(db: str | None) -> None:
    """Raise RegistryError if ``--db`` names the usual database, SandboxError where there is no sandbox here."""
    from tuning_db.database.location import locate

    from ...sandbox.bubblewrap import bubblewrap

    if db is not None and locate(db) == locate(None):
        raise RegistryError(f"--db {locate(db).shown} with --sandbox: it is the usual database", hint=_OWN)
    bubblewrap()


def in_sandboxes(
    files: Sequence[Path], told: Shapes, catalog: Catalog, device: Device, *, every: bool, kept: bool
) -> tuple[Catalog, list[str]]:
    """The catalog of stand-ins for the problems, and notes on the run. ``kept``: whether a database is given."""
    from ...sandbox.control_group import limits_told
    from ...sandbox.tuning.sandboxed_run import sandboxed_catalog
    from ...tuner.planning.ranges import represented

    for path in files:
        if fault := why_no_file(path):
            raise RegistryError(
                f"--plugin {path}: {fault}", hint="expected a Python file, see docs/writing-a-plugin.md"
            )
    problems = represented(told.all, told.counts, catalog.op, every=every).problems
    notes = [limits_told(), *(() if kept else (_KEPT_NOWHERE,))]
    return sandboxed_catalog(files, problems, catalog, device, note=notes.append), notes


def options_in_sandboxes(options: TuneOptions, catalog: Catalog, device: Device) -> TuneOptions:
    """The options of a run whose catalog ``in_sandboxes`` made."""
    from ...sandbox.tuning.sandboxed_run import sandboxed_options
    from ...sandbox.tuning.stand_in_catalog import StandInCatalog

    assert isinstance(catalog, StandInCatalog)
    return sandboxed_options(options, catalog, device)


@contextmanager
def database_of(db: str | None, *, sandbox: bool) -> Iterator[str | None]:
    """``db``; for a run in sandboxes without one, a database that is gone afterwards."""
    if db is not None or not sandbox:
        yield db
        return
    with tempfile.TemporaryDirectory(prefix="tune-") as folder:
        yield str(Path(folder) / "sandboxed.db")
