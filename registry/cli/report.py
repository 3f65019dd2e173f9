"""``registry report``: the contents of the database as one HTML file."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from tuning_db.records import now

from ..errors import RegistryError
from ..paths import write_whole
from .collecting import seldom_collecting
from .display import text
from .options import Database, SeveralOps, split
from .stored import stored_facts

_HEAD_BYTES = 2048


def report(
    op: SeveralOps = None,
    db: Database = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Where to write; - is stdout. An older report is replaced.")
    ] = Path("report.html"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file also if it is not a report.")] = False,
) -> None:
    """Write a report as one HTML file.

    Winners, times, the search, the finals and the environment; it needs no network and can be mailed.
    """
    from ..report.page import render

    ops = split("--op", op)
    if str(out) != "-":
        check_out(out, force=force)
    from tuning_db import Store

    with Store.open(db, create=False, migrate=False) as store, seldom_collecting():
        facts = stored_facts(store, ops)
        page = render(facts, version=version("kernel-registry"), created=now())
    if str(out) == "-":
        sys.stdout.write(page)
        return
    write(page, out)
    text.say(f"{out.resolve()} written ({len(page.encode()) / 1e6:.1f} MB)")


def check_out(path: Path, *, force: bool) -> None:
    """Raises RegistryError for an output file that must not, or cannot, be replaced; called before any work."""
    if path.is_dir():
        raise RegistryError(f"--out {path}: a folder", hint=f"name the file, e.g. {path / 'report.html'}")
    if not path.resolve().parent.is_dir():
        raise RegistryError(f"--out {path}: no such folder", hint=f"make {path.parent} first")
    if not path.exists():
        return
    if not path.is_file():
        raise RegistryError(f"--out {path}: not a regular file", hint="use --out - for stdout")
    if not force and not _is_report(path):
        raise RegistryError(
            f"--out {path}: there is a file that is not a report", hint="choose another name, or replace it by --force"
        )


def _is_report(path: Path) -> bool:
    from ..report.page import GENERATOR

    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except OSError as fault:
        raise RegistryError(f"--out {path}: {fault.strerror}", hint="expected a file that can be written") from None
    return not head or f'name="generator" content="{GENERATOR}"'.encode() in head


def write(page: str, path: Path) -> None:
    """Writes the file completely or not at all, so that a reader of an existing report never sees half of one."""
    try:
        write_whole(path.resolve(), page.encode())
    except OSError as fault:
        raise RegistryError(f"--out {path}: {fault.strerror}", hint="expected a file that can be written") from None
