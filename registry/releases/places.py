"""Where a process reads its winners: the release that it is pinned to, a site's copy, or a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from .pinning import is_server, pinned, place_of
from .site_copies import SECONDS, site_copy


@dataclass(frozen=True)
class WinnersPlace:
    """A database of winners that is read. ``shown``: how it is told, "" as itself. ``release``: its id, "" if none.

    ``replaceable``: a copy that is removed some time after another one has taken its place.
    """

    database: str | None
    shown: str = ""
    release: str = ""
    replaceable: bool = False

    @property
    def gone(self) -> bool:
        """True for a copy that was removed since another one has taken its place."""
        return self.replaceable and self.database is not None and not Path(self.database).exists()


def winners_place(database: str | None, *, anew: bool = False, seconds: float = SECONDS) -> WinnersPlace:
    """The place of winners for a process whose tuning database is ``database`` (None: the default place).

    A site's copy is made ``anew`` if that is asked for, and waited for as long as ``seconds``. Raises ReleaseError for
    a pinned release that is not found, TuningDBError for a site's database that cannot be read while there is no copy
    of it.
    """
    release = pinned(database)
    if release is not None:
        return WinnersPlace(str(release.path), str(release), release.id)
    if is_server(database):
        copy = site_copy(database, anew=anew, seconds=seconds)
        return WinnersPlace(str(copy.path), f"{host_of(place_of(database))} ({copy})", replaceable=True)
    return WinnersPlace(database)


def host_of(url: str) -> str:
    """The server and the name of a URL, without user and password."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"
