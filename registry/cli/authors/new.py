"""``registry new plugin`` and ``registry new op``: a package to begin with, that runs and is right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..display import text
from ..options import Json, catalog_with

if TYPE_CHECKING:
    from ...authoring.packages import NewPackage

Folder = Annotated[
    Path | None,
    typer.Option("--folder", metavar="FOLDER", help="Where to make it; must not exist. Default: registry-VENDOR."),
]


def new_plugin(
    vendor: Annotated[
        str, typer.Argument(metavar="VENDOR", help="The plugin's name, e.g. acme: its package is registry_acme.")
    ],
    op: Annotated[str, typer.Option("--op", metavar="OP", help="The op to implement, e.g. softmax.")],
    backend: Annotated[
        str, typer.Option("--backend", metavar="NAME", help="What to write it in: triton, torch, cuda or cpp.")
    ] = "triton",
    folder: Folder = None,
    json: Json = False,
) -> None:
    """Make a package with one implementation of an op.

    It can be installed, runs and is right, with tests, a README and a CI file for machines without a GPU. Triton, CUDA
    and C++ have a first kernel of square, softmax and rms_norm; torch begins with the reference of any op.
    """
    from ...authoring import packages

    if "::" in op and op.partition("::")[0] == vendor:
        from ...errors import RegistryError

        raise RegistryError(f"{op} is an op of {vendor} itself", hint=f"make both with `registry new op {op}`")
    _tell(packages.new_plugin(vendor, catalog_with(None).op(op), backend, folder), json=json)


def new_op(
    op: Annotated[str, typer.Argument(metavar="VENDOR::NAME", help="The new op's name, e.g. acme::row_sum.")],
    folder: Folder = None,
    json: Json = False,
) -> None:
    """Make a package with the contract of a new op and one implementation.

    The contract is that of the sum of each row, to be replaced part by part: schema, reference, fake, dimensions,
    inputs, floor and tolerance.
    """
    from ...authoring import packages

    _tell(packages.new_op(op, folder), json=json)


def _tell(made: NewPackage, *, json: bool) -> None:
    if json:
        text.print_json(made)
        return
    text.say(f"made {made.folder}: {text.plural(len(made.files), 'file')}")
    for name in made.files:
        text.write(f"  {name}")
    text.say("next:")
    for line in (f"pip install -e {made.folder}", f"pytest {made.folder}", f"registry check {made.vendor}"):
        text.write(f"  {line}")
