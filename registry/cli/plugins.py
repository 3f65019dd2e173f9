"""``registry plugins``: every plugin found, its ops and implementations, and its fault."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from .display import text
from .display.table import Column, Group, print_table
from .options import Json, Plugins, catalog_with

if TYPE_CHECKING:
    from ..discovery.plugin import PluginReport


_COLUMNS = (
    Column("plugin"),
    Column("distribution", lifts=True, label="distribution"),
    Column("version", lifts=True, label="version"),
    Column("API", lifts=True, label="API"),
    Column("ops", right=True),
    Column("implementations", right=True),
    Column("load ms", right=True),
    Column("state"),
)


def plugins(plugin: Plugins = None, json: Json = False) -> None:
    """List the plugins and their faults.

    With distribution, version, API version, ops, implementations and load time.
    """
    catalog = catalog_with(plugin)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the faults are in the listing
        reports = catalog.plugins()
    if json:
        text.print_json(reports)
        return
    print_table(_COLUMNS, [Group("", [_row(report) for report in reports])])


def _row(report: PluginReport) -> list[str]:
    return [
        report.name,
        report.distribution or "-",
        report.version or "-",
        "-" if report.api_version is None else str(report.api_version),
        str(len(report.ops)),
        str(len(report.implementations)),
        f"{report.load_ms:.0f}",
        state(report),
    ]


def state(report: PluginReport) -> str:
    """The state of a plugin: ``ok``, ``blocked``, its fault, or the ops that it implements and no plugin defines."""
    if report.fault:
        return f"fault: {report.fault}"
    if report.blocked:
        return "blocked by KERNEL_REGISTRY_PLUGINS or KERNEL_REGISTRY_BLOCK"
    return f"inactive: nobody defines {', '.join(report.inactive)}" if report.inactive else "ok"
