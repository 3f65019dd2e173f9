"""``registry explain``: the implementation that a call would run and the reasons, from dimensions alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidArgumentError, ShapesFileError
from ..untrusted.yaml_document import Document
from .display import text
from .options import Database, DeviceName, Json, Plugins, catalog_with, check_database, device_of

if TYPE_CHECKING:
    from ..contract import Op


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
    problem = contract.problem_of(_dimensions(contract, dims or ()))
    told = Dispatcher(catalog, database=db).explain_problem(problem, device_of(device))
    if json:
        text.print_json(told)
    else:
        for line in str(told).splitlines():
            if line.split(maxsplit=1)[:1] == ["tune"]:
                text.write(line)  # a command, which could not be copied from several lines
            else:
                text.say(line, hang=9)


def _dimensions(op: Op, pairs: Iterable[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, value in (_dimension(op, pair) for pair in pairs):
        if name in given:
            raise InvalidArgumentError(f"{name} was given twice", hint=f"give each dimension of {op.name} once")
        given[name] = value
    return given


def _dimension(op: Op, pair: str) -> tuple[str, Any]:
    name, given, value = pair.partition("=")
    if not given or not value:
        known = ", ".join(sorted(op.static | op.dynamic))
        raise InvalidArgumentError(f"{pair!r} is not DIM=VALUE", hint=f"{op.name} has the dimensions {known}")
    try:
        return name, Document(pair, value).data
    except ShapesFileError:
        return name, value  # any other value is text, which the check of dimensions refuses
