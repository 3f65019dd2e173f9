"""Versions that all workers of a fleet must share: torch, Triton, ops and plugins, with the plugins' sources."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from .. import __version__
from ..device import installed_version
from ..discovery.catalog import Catalog
from ..discovery.plugin import PluginReport

_OP, _PLUGIN = "op ", "plugin "
_SHOWN = 12
"""Digits of a source's hash: enough to tell two apart."""


def versions_of(catalog: Catalog, ops: Iterable[str]) -> dict[str, str]:
    """Versions here, by name, of what takes part in tuning ``ops``.

    A plugin's version is its distribution's, with a hash of the sources of its implementations of these ops: two
    checkouts of one version may differ. Local parts of versions (``+cu128``) are left out: a planner needs no GPU.
    """
    known, wanted = catalog.ops(), set(ops)
    found = {
        "torch": torch.__version__.partition("+")[0],
        "triton": installed_version("triton").partition("+")[0],
        "kernel-registry": __version__,
    }
    found |= {f"{_OP}{name}": str(known[name].version) for name in sorted(wanted) if name in known}
    for report in catalog.plugins():
        taking_part = [entry for entry in report.implementations if entry.partition("/")[0] in wanted]
        if taking_part:
            name = Path(report.name).name if report.name in catalog.files else report.name
            found[f"{_PLUGIN}{name}"] = _version(catalog, report, taking_part)
    return found


def differences(required: Mapping[str, str], catalog: Catalog) -> list[str]:
    """What differs here from the versions that a plan requires, a line each; empty if nothing does."""
    if not required:
        return []
    here = versions_of(catalog, [name.removeprefix(_OP) for name in required if name.startswith(_OP)])
    told = []
    for name in sorted({*required, *here}):
        if name not in here:
            told.append(f"{name} {required[name]} is required and not installed here")
        elif name not in required:
            told.append(f"{name} {here[name]} is installed here, and the fleet works without it")
        elif here[name] != required[name]:
            told.append(f"{name} is {here[name]} here, the fleet works with {required[name]}")
    return told


def _version(catalog: Catalog, report: PluginReport, entries: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for entry in sorted(entries):
        op, _, name = entry.partition("/")
        digest.update(f"{entry} {catalog.implementation(op, name).fingerprint()}\n".encode())
    origin = " ".join(part for part in (report.distribution, report.version) if part)
    return f"{origin or 'file'}, source {digest.hexdigest()[:_SHOWN]}"
