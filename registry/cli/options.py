"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import RegistryError

if TYPE_CHECKING:
    from ..discovery import Catalog

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


def catalog_with(plugins: Iterable[Path] | None) -> Catalog:
    """Everything that is installed, and the implementations in the given files."""
    from ..discovery import Catalog

    catalog = Catalog()
    for path in plugins or ():
        if not path.is_file():
            raise RegistryError(
                f"--plugin {path}: no such file", hint="expected a Python file, see docs/writing-a-plugin.md"
            )
        catalog.load_file(path)
    return catalog


def split(values: Iterable[str] | None) -> list[str]:
    """What was given by repeating an option, by commas, or both."""
    return [part.strip() for value in values or () for part in value.split(",") if part.strip()]
