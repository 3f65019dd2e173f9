"""``registry report``: the contents of the database as one HTML file."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from tuning_db.records import now

from ..paths import resolved
from .collecting import seldom_collecting
from .display import text
from .options import Database, SeveralOps, split
from .pages.installed import counted_work, installed_sources
from .pages.page_file import check_out, write
from .stored import stored_facts


def report(
    op: SeveralOps = None,
    db: Database = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Where to write; - is stdout. An older report is replaced.")
    ] = Path("report.html"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file also if it is not a report.")] = False,
    source: Annotated[
        bool,
        typer.Option(
            "--source",
            help="Load the installed plugins too: show the source of kernels, and count the bytes and FLOP of problems "
            "that older runs do not tell.",
        ),
    ] = False,
) -> None:
    """Write a report as one HTML file.

    For each op and GPU a leaderboard, the roofline, winners, times, the search and the finals, and a page for each
    kernel: whom it beats where, what its parameters cost, its registers and spills. It needs no network and can be
    mailed; sources are in it only with --source.
    """
    from ..report.page import render

    ops = split("--op", op)
    if str(out) != "-":
        check_out(out, force=force)
    from tuning_db import Store

    with Store.open(db, create=False, migrate=False) as store, seldom_collecting():
        facts = stored_facts(store, ops, counted_work if source else None)
        sources = installed_sources(section.op for section in facts.sections) if source else None
        page = render(facts, version=version("kernel-registry"), created=now(), sources=sources)
    if str(out) == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(page.encode())  # the page says that it is UTF-8, whatever the locale is
        return
    write(page, out)
    text.say(f"{resolved(out)} written ({len(page.encode()) / 1e6:.1f} MB)")
