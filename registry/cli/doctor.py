"""``registry doctor``: checks of this machine, with a remedy for each fault."""

from __future__ import annotations

import typer

from .checks import FAULT, checks
from .display import text
from .options import Database, Json

_MARKS = {"ok": "ok   ", "absent": "-    ", FAULT: "FAULT"}
_HANG = 22


def doctor(db: Database = None, json: Json = False) -> None:
    """Check this machine.

    Python, torch, Triton, GPU, compilers, cache, database and plugins, each fault with its remedy.

    Exit code 1 when there is a fault; a part that is absent (a GPU) is none.
    """
    found = list(checks(db))
    if json:
        text.print_json(found)
    else:
        for check in found:
            text.say(f"{_MARKS[check.state]}  {check.name:<14} {check.found}", hang=_HANG)
            if check.advice:
                text.say(f"{'':<{_HANG}}-> {check.advice}", hang=_HANG + 3)
    raise typer.Exit(1 if any(check.state == FAULT for check in found) else 0)
