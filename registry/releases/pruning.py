"""Copies of releases and sites that no process has read for a while: removed from this machine."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path

from ..paths import cache_folder
from .copies import FOLDER
from .site_copies import PRESENT, SITES, asked_at, remove_replaced

_DAY_S = 86_400.0


def prune(days: float, *, dry: bool = False) -> list[Path]:
    """Remove the copies that were not read for so many ``days``, and what interrupted processes left; returns them.

    ``dry``: leave them, and tell which these are. A release that is wanted again is copied again, from its database.
    """
    before, folders = time.time() - days * _DAY_S, [cache_folder(FOLDER), cache_folder(SITES)]
    releases = [path for path in folders[0].iterdir() if path.suffix in {".db", ".name"} and _read_at(path) < before]
    sites = [path for path in folders[1].glob(f"*{PRESENT}") if max(_read_at(path), asked_at(path)) < before]
    left = [path for folder in folders for path in folder.glob(".making-*") if _read_at(path) < time.time() - _DAY_S]
    removed = [*releases, *sites, *left]
    if not dry:
        for path in removed:
            with suppress(OSError):  # another process has removed it
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    return sorted([*removed, *remove_replaced(sites, dry=dry)])


def _read_at(path: Path) -> float:
    """When a copy was last read, as its date says, see ``copies.mark_read``."""
    try:
        return path.stat().st_mtime
    except OSError:
        return time.time()
