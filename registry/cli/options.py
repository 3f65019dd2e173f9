"""Options that several commands share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import RegistryError
from ..untrusted.file_kinds import why_no_file

if TYPE_CHECKING:
    from tuning_db import Store

    from ..device import Device
    from ..discovery.catalog import Catalog

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Database = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        help="The tuning database, as an SQLAlchemy URL or the path of an SQLite file. "
        "Default: KERNEL_REGISTRY_DB, else a file in your data folder.",
    ),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option("--plugin", metavar="FILE", help="A Python file with implementations to try too. Repeatable."),
]
DeviceName = Annotated[
    str | None, typer.Option("--device", metavar="DEVICE", help="cpu, cuda or cuda:INDEX. Default: the GPU, if any.")
]
SEVERAL = "Repeatable, or separated by commas."
OneOp = Annotated[str | None, typer.Option("--op", metavar="OP", help="Only this op.")]
SeveralOps = Annotated[
    list[str] | None, typer.Option("--op", metavar="OP", help=f"Only this op. {SEVERAL} Default: all.")
]


def whole_number(text: str) -> int:
    """The integer in ``text``. Raises BadParameter with the text, which typer's own message leaves out."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no whole number") from None


def number(text: str) -> float:
    """The number in ``text``. Raises BadParameter with the text."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no number") from None


def device_of(name: str | None) -> Device:
    """The device of that name; without a name the GPU, if any, else the CPU."""
    from ..device import Device

    return Device.best() if name is None else Device.of(name)


def catalog_with(plugins: Iterable[Path] | None) -> Catalog:
    """A catalog of the installed plugins and of the implementations in the given files."""
    from ..discovery.catalog import Catalog

    catalog = Catalog()
    for path in plugins or ():
        if fault := why_no_file(path):
            raise RegistryError(
                f"--plugin {path}: {fault}", hint="expected a Python file, see docs/writing-a-plugin.md"
            )
        catalog.load_file(path)
    return catalog


def split(option: str, values: Iterable[str] | None) -> list[str]:
    """The names given to an option, repeated or with commas. Raises RegistryError for an option that names nothing."""
    given = list(values or ())
    names = [part.strip() for value in given for part in value.split(",") if part.strip()]
    if given and not names:
        raise RegistryError(f"{option} names nothing", hint=f"leave {option} out for all")
    return names


def check_stored_op(op: str | None, store: Store) -> None:
    """Raises UnknownNameError for an op that is neither installed nor, from a plugin that is gone, in the database."""
    if op is not None and not store.knows(op):
        catalog_with(None).op(op)


def check_database(url: str | None) -> None:
    """Raises TuningDBError for a database that exists but cannot be used; a missing one is no fault."""
    from tuning_db import MissingDatabaseError, Store

    with contextlib.suppress(MissingDatabaseError), Store.open(url, create=False, migrate=False):
        pass
