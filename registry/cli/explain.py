"""``registry explain``: the implementation that a call would run and the reasons, from dimensions alone."""

from __future__ import annotations

from typing import Annotated

import typer

from .display import text
from .options import Database, DeviceName, Json, Plugins, catalog_with, check_database, device_of
from .problems.dimensions import dimensions_of


def explain(
    op: Annotated[str, typer.Argument(metavar="OP", help="The op, e.g. softmax.")],
    dims: Annotated[
        list[str] | None,
        typer.Argument(metavar="DIM=VALUE", help="Its dimensions, all of them, e.g. rows=256 cols=2048 dtype=float32."),
    ] = None,
    device: DeviceName = None,
    plugin: Plugins = None,
    db: Database = None,
    json: Json = False,
) -> None:
    """Tell which implementation a call would run, and why.

    With its config, the step that decided, and the reasons against each other implementation.

    For contiguous, aligned tensors without gradients. Nothing is compiled or run.
    """
    from ..dispatch.dispatcher import Dispatcher

    check_database(db)
    catalog = catalog_with(plugin)
    contract = catalog.op(op)
    problem = contract.problem_of(dimensions_of(contract, dims or ()))
    told = Dispatcher(catalog, database=db).explain_problem(problem, device_of(device))
    if json:
        text.print_json(told)
    else:
        for line in str(told).splitlines():
            if line.split(maxsplit=1)[:1] == ["tune"]:
                text.write(line)  # a command, which could not be copied from several lines
            else:
                text.say(line, hang=9)
