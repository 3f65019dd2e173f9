"""Copies of winners on this machine: SQLite files in the user's cache, each made at once from exchange lines."""

from __future__ import annotations

import io
import os
import sqlite3
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

from tuning_db.schema import READABLE

from ..paths import cache_folder

FOLDER = "releases"
_MARKED_EVERY_S = 86_400.0


def release_copy(release_id: str) -> Path:
    """The place of the copy of a release, which may not be there yet. It never changes.

    A copy is read by every version of this package that reads its schema, which its name tells.
    """
    folder = cache_folder(FOLDER)
    places = [folder / f"{release_id}.{version}.db" for version in sorted(READABLE, reverse=True)]
    return next((place for place in places if place.exists()), places[0])


def mark_read(path: Path) -> None:
    """Date a copy as read now, once a day: ``registry release prune`` removes those that nobody reads."""
    with suppress(OSError):  # of a cache that cannot be written
        if time.time() - path.stat().st_mtime > _MARKED_EVERY_S:
            os.utime(path)


def make_database(path: Path, content: bytes) -> None:
    """Make a database of exchange lines, or replace it: no reader sees half of it.

    Raises ExchangeError for a bad line, OSError where it cannot be written.
    """
    from tuning_db import Store

    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".making-") as folder:
        made = Path(folder) / path.name
        with Store.open(made) as store:
            store.load(io.StringIO(content.decode()))
        with closing(sqlite3.connect(made)) as connection:
            # one file, which is replaced whole: a log of the old one would be taken for the new one's
            connection.execute("PRAGMA journal_mode=DELETE")
        made.replace(path)
