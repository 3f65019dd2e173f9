"""``registry ops``: the ops, their dimensions, schemas and implementations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .collecting import seldom_collecting
from .display import text
from .options import Json, Plugins, catalog_with

if TYPE_CHECKING:
    from ..contract import Op
    from ..discovery.catalog import Catalog

_HANG = 19


def ops(plugin: Plugins = None, json: Json = False) -> None:
    """List the ops and their implementations.

    With their schemas, and their dimensions as a shapes file names them.
    """
    with seldom_collecting():  # importing torch and every plugin makes objects that stay
        _tell(catalog_with(plugin), json=json)


def _tell(catalog: Catalog, *, json: bool) -> None:
    if json:
        text.print_json([_data(op, catalog) for op in catalog.ops().values()])
        return
    for op in catalog.ops().values():
        names = [implementation.name for implementation in catalog.implementations(op.name)]
        text.say(f"{op.name}, version {op.version}")
        dims = f"dynamic: {_listed(sorted(op.dynamic))}; static: {_listed(sorted(op.static))}"
        implementations = f"{len(names)}: {_listed(names)}"
        for name, told in {"schema": op.schema, "dimensions": dims, "implementations": implementations}.items():
            text.say(f"  {name:<15}  {told}", hang=_HANG)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _data(op: Op, catalog: Catalog) -> dict[str, object]:
    return {
        "name": op.name,
        "version": op.version,
        "schema": op.schema,
        "dynamic": sorted(op.dynamic),
        "static": sorted(op.static),
        "implementations": [
            {"name": implementation.name, "device_types": sorted(implementation.device_types)}
            for implementation in catalog.implementations(op.name)
        ],
    }
