"""``registry check``: what can be said of a plugin, with and without a GPU."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import RegistryError
from ...paths import resolved, write_whole
from ..display import text
from ..display.outcomes import say_outcome, total
from ..options import Database, split
from ..pages.page_file import check_place

if TYPE_CHECKING:
    from ...checking.outcomes import PluginCheck


def check(
    plugin: Annotated[
        str,
        typer.Argument(
            metavar="PLUGIN", help="A .py file; or an installed plugin by its name, package, distribution or folder."
        ),
    ],
    arch: Annotated[
        list[str] | None,
        typer.Option(
            "--arch", metavar="ARCH", help="What to compile for. Repeatable, or with commas. Default: sm_80, sm_90."
        ),
    ] = None,
    limit: Annotated[
        float, typer.Option("--limit", metavar="SECONDS", min=1, help="The most seconds that one check may take.")
    ] = 600.0,
    db: Database = None,
    sandbox: Annotated[
        bool,
        typer.Option(
            "--sandbox",
            help="Run each check of a .py file behind bubblewrap, without network, files or other processes: for"
            " plugins of strangers. What a plugin finds of itself is believed.",
        ),
    ] = False,
    json: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write the outcomes as JSON; - is stdout, and no text."),
    ] = None,
) -> None:
    """Check a plugin: that it loads, is right, and compiles.

    Without a GPU: that it loads, the contracts of its ops, the numbers of its implementations on the CPU (Triton's in
    its interpreter, on small examples), and registers, spills, shared memory and occupancy for each --arch. With a GPU
    also the numbers there and at tuned shapes, capture and replay, two streams, and memory faults and races where
    compute-sanitizer is installed. Each check runs in a process of its own, so that a crash is one of the findings.

    Exit code 0: nothing was found; 1: a check failed; 2: there is no such plugin, or an option is wrong.
    """
    from ...checking.running import ARCHITECTURES, CheckRequest, check_plugin

    alone = json is not None and str(json) == "-"
    if json is not None and not alone:
        check_place("--json", json, hint="use --json - for stdout")
    request = CheckRequest(plugin, split("--arch", arch) or ARCHITECTURES, db, limit, sandbox=sandbox)
    done = check_plugin(request, (lambda _: None) if alone else say_outcome)
    if json is not None:
        _write(done, json)
    if not alone:
        text.say(total(done))
    raise typer.Exit(0 if done.ok else 1)


def _write(done: PluginCheck, path: Path) -> None:
    document = json_module.dumps(done.as_data(), indent=2) + "\n"
    if str(path) == "-":
        sys.stdout.write(document)
    else:
        try:
            write_whole(resolved(path), document.encode())
        except OSError as fault:
            raise RegistryError(
                f"--json {path}: {fault.strerror}", hint="expected a file that can be written"
            ) from None
