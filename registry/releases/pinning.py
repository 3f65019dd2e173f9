"""The release that a process is pinned to: ``KERNEL_REGISTRY_RELEASE`` is its name, its id or its file."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tuning_db import ExchangeError, MissingDatabaseError, TuningDBError
from tuning_db.database.location import VARIABLE, default_path
from tuning_db.releases import FILE_SUFFIX, find_content, find_id, find_names, id_of, is_id, shown_id

from ..errors import ReleaseError
from ..paths import cache_folder, expanded, write_whole
from .copies import FOLDER, make_database, mark_read, release_copy

RELEASE_VARIABLE = "KERNEL_REGISTRY_RELEASE"

SECONDS = 30.0
"""The most seconds that a database may take to answer: a pinned process waits for its release, and fails without it."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class PinnedRelease:
    """A release whose copy, a database, is on this machine. ``told``: its name or file, "" if it was told by its id."""

    id: str
    path: Path
    told: str = ""

    def __str__(self) -> str:
        return f"release {self.told} ({shown_id(self.id)})" if self.told else f"release {shown_id(self.id)}"


def pinned(database: str | None, environ: Mapping[str, str] = os.environ) -> PinnedRelease | None:
    """The release that the variable names, in ``database`` (None: the default place); None without the variable.

    A copy that this machine has is used without asking a database. Raises ReleaseError for a release that is not found.
    """
    told = pinned_name(environ)
    return release_named(told, database) if told else None


def pinned_name(environ: Mapping[str, str] = os.environ) -> str:
    """The release that the environment variable names; "" for a process that is not pinned."""
    return environ.get(RELEASE_VARIABLE, "").strip()


def release_named(told: str, database: str | None) -> PinnedRelease:
    """The release of that name, id or file, see ``pinned``. Raises ReleaseError."""
    if told.endswith(FILE_SUFFIX) or os.sep in told:
        return _of_file(told)
    release_id = told if is_id(told) else _id_of_name(told, database)
    path = release_copy(release_id)
    if not path.exists():
        _make(path, release_content(release_id, database), told)
    mark_read(path)
    return PinnedRelease(release_id, path, "" if told == release_id else told)


def release_content(told: str, database: str | None) -> bytes:
    """The content of the release of that name or id in a database. Raises ReleaseError."""
    release_id = told if is_id(told) else _id_of_name(told, database)
    content = _asked(lambda: find_content(database, release_id, SECONDS), told)
    if content is None:
        raise _not_found(told, database)
    return content


def release_name(told: str, database: str | None) -> str:
    """The name of the release of that name or id in a database. Raises ReleaseError, also for one of several names."""
    if not is_id(told):
        return told
    names = _asked(lambda: find_names(database, told, SECONDS), told) or []
    if not names:
        raise _not_found(told, database)
    if len(names) > 1:
        raise ReleaseError(
            f"release {shown_id(told)} has the names {', '.join(names)}", hint="give the name that is to be signed"
        )
    return names[0]


def is_server(database: str | None) -> bool:
    """True for the URL of a server's database; None is the default place."""
    return place_of(database).startswith("postgresql")


def place_of(database: str | None) -> str:
    """The path or URL of a database; None is the default place."""
    return database or os.environ.get(VARIABLE) or str(default_path())


def _of_file(told: str) -> PinnedRelease:
    file = expanded(told)
    try:
        # a pipe or a device may never end, and a process waits for its release
        content = file.read_bytes() if stat.S_ISREG(file.stat().st_mode) else None
    except OSError as fault:
        raise ReleaseError(f"release {told}: {fault.strerror}", hint=_HINT) from None
    if content is None:
        raise ReleaseError(f"release {told}: not a regular file", hint=_HINT)
    path = release_copy(id_of(content))
    if not path.exists():
        _make(path, content, told)
    mark_read(path)
    return PinnedRelease(id_of(content), path, told)


def _id_of_name(name: str, database: str | None) -> str:
    """The id of a named release: of a server's, as this machine remembers it; else as the database says."""
    asked = f"{place_of(database)} {name}".encode(errors="surrogatepass")  # also of an argument that is no UTF-8
    memory = cache_folder(FOLDER) / f"{hashlib.sha256(asked).hexdigest()}.name"
    known = memory.read_text() if memory.exists() else ""
    mark_read(memory)
    if known and is_server(database):  # a release never changes
        return known
    try:
        found = _asked(lambda: find_id(database, name, SECONDS), name)
    except ReleaseError:
        if known:
            return known
        raise
    if found is None:
        raise _not_found(name, database)
    if found != known:
        write_whole(memory, found.encode())
    return found


def _asked(ask: Callable[[], _Answer | None], told: str) -> _Answer | None:
    try:
        return ask()
    except (MissingDatabaseError, UnicodeEncodeError):  # no release has a name that is no UTF-8
        return None
    except TuningDBError as fault:
        raise ReleaseError(f"release {told}: {fault.message}", hint=fault.hint) from fault


def _make(path: Path, content: bytes, told: str) -> None:
    try:
        make_database(path, content)
    except (ExchangeError, UnicodeDecodeError) as fault:
        raise ReleaseError(f"release {told}: {fault}", hint="expected a file of `registry release export`") from fault
    except OSError as fault:
        raise ReleaseError(f"release {told}: its copy cannot be written: {fault.strerror}", hint=str(path)) from fault


_HINT = f"{RELEASE_VARIABLE} is the name of a release, its id, or its file; `registry release list` shows them"


def _not_found(told: str, database: str | None) -> ReleaseError:
    where = "the database" if is_server(database) else place_of(database)
    return ReleaseError(f"there is no release {told} in {where}, and no copy of it on this machine", hint=_HINT)
